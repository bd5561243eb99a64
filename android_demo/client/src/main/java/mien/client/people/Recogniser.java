package mien.client.people;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntToDoubleFunction;
import java.util.stream.Collectors;
import mien.client.ErrorCode;
import mien.client.KnownFaceException;
import mien.client.MienException;
import mien.client.model.FaceInput;
import mien.client.model.Model;
import mien.client.model.PublicShard;
import mien.client.train.GraphRuntime;
import mien.client.wire.Texts;

/** Verifies and identifies aligned crops against the gallery, at the threshold that came with the model. */
public final class Recogniser {
    /** In the place of a person's number, which is at least 1. */
    public static final int NOBODY = 0;

    /** Of the draws by which a personal model is judged. */
    private static final long SEED = 0;

    public final Model model;
    private final GraphRuntime runtime;
    private final Gallery gallery;

    /** Recognises the people of a gallery with a model. */
    public Recogniser(Model model, GraphRuntime runtime, Gallery gallery) {
        this.model = model;
        this.runtime = runtime;
        this.gallery = gallery;
    }

    /** Returns embeddings of master crops (112 x 112, RGB), each at length 1; throws NON_FINITE. */
    public float[][] embed(byte[][] crops) {
        FaceInput input = model.spec.input;
        byte[][] fitted = new byte[crops.length][];
        for (int i = 0; i < crops.length; i++) {
            fitted[i] = input.fit(crops[i]);
        }
        return runtime.embed(model.parameters, fitted);
    }

    /** Returns the template of one person's crops of one sitting: the mean of their embeddings at length 1. */
    public float[] template(byte[][] crops) {
        float[][] embeddings = embed(crops);
        double[] mean = new double[embeddings[0].length];
        for (float[] embedding : embeddings) {
            for (int d = 0; d < mean.length; d++) {
                mean[d] += embedding[d] / embeddings.length;
            }
        }
        double squares = 0;
        for (double value : mean) {
            squares += value * value;
        }
        if (!(squares >= 1e-12)) {
            throw new MienException(
                    ErrorCode.NON_FINITE,
                    "the pictures of this person cancel each other out; enrol with pictures of one person");
        }
        float[] template = new float[mean.length];
        for (int d = 0; d < mean.length; d++) {
            template[d] = (float) (mean[d] / Math.sqrt(squares));
        }
        return template;
    }

    /** Returns whether a crop shows one person: theirs, or unknown. Throws NOT_ENROLLED, CORRUPT_DATA if damaged. */
    public Decision verify(int person, byte[] crop) {
        Gallery.Person claimed = gallery.readable(person);
        double threshold = threshold();
        float[][] templates = gallery.templates(model.modelId).get(person);
        float[][] probe = embed(new byte[][] {crop});
        PersonalModel personal = personal();
        if (personal != null && templates != null && personal.thresholds.containsKey(person)) {
            threshold = personal.thresholds.get(person).value;
            templates = personal.branch.apply(templates);
            probe = personal.branch.apply(probe);
        }
        return new Decision(score(templates, probe[0]) >= threshold ? claimed : null);
    }

    /** Returns the personal model; null without one, and where its thresholds came from another one than the release's. */
    private PersonalModel personal() {
        PersonalModel stored = gallery.personal(model.modelId);
        return stored == null || stored.releasedThreshold != threshold() ? null : stored;
    }

    /** Returns whether the personal model decides. */
    public boolean isPersonal() {
        return personal() != null;
    }

    /**
     * Returns what the model becomes for everybody here who agreed to training, with the public faces that came with it: in
     * use from now on where that is better on pictures that were left out, and else forgotten with an earlier one. Throws
     * CONFIG where nobody agreed, a person has too few pictures or the model brings too few faces, UNREACHABLE where
     * people changed meanwhile.
     */
    public Personalised personalise(PublicShard shard) {
        if (shard == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "the model brings no public faces, which a personal model needs; ask the operator");
        }
        long version = gallery.version();
        List<Integer> people = new ArrayList<>();
        List<byte[]> crops = new ArrayList<>();
        List<Integer> whose = new ArrayList<>();
        for (Gallery.Person person : gallery.people()) {
            for (byte[] crop : person.trains ? person.crops() : new byte[0][]) {
                crops.add(crop);
                whose.add(people.size());
            }
            if (person.trains) {
                people.add(person.id);
            }
        }
        if (people.isEmpty()) {
            throw new MienException(
                    ErrorCode.CONFIG, "a personal model needs somebody enrolled who agreed to training; nobody has");
        }
        int[] labels = whose.stream().mapToInt(number -> number).toArray();
        float[][] own = embed(crops.toArray(new byte[0][]));
        float[][] others = runtime.embed(model.parameters, shard, shard.everyCrop());
        double released = threshold();
        Judgement judged = Judgement.of(own, labels, others, shard.labels, released, SEED);
        Map<Integer, PersonalThreshold> thresholds = new LinkedHashMap<>();
        for (int k = 0; k < judged.thresholds.length; k++) {
            thresholds.put(people.get(k), judged.thresholds[k]);
        }
        if (judged.isBetter()) {
            gallery.keepPersonal(new PersonalModel(model.modelId, judged.branch, thresholds, released), version);
        } else {
            gallery.forgetPersonal();
        }
        return new Personalised(thresholds, judged.gain, judged.gainError, judged.isBetter());
    }

    /** Returns who of the gallery a crop shows, if anybody. Throws NOT_ENROLLED while nobody is enrolled. */
    public Decision identify(byte[] crop) {
        Map<Integer, float[][]> everybody = gallery.templates(model.modelId);
        if (everybody.isEmpty()) {
            throw new MienException(ErrorCode.NOT_ENROLLED, "nobody is enrolled yet; enrol somebody first");
        }
        Operating at = among(everybody.size());
        float[][] probe = embed(new byte[][] {crop});
        PersonalModel personal = personal();
        // Scores of two models cannot be compared: the personal one decides where it was made for everybody.
        boolean isForAll = personal != null && personal.thresholds.keySet().containsAll(everybody.keySet());
        List<Gallery.Person> found = new ArrayList<>();
        for (int id : isForAll ? reaching(personal, everybody, probe) : reaching(everybody, probe[0], at.value)) {
            Gallery.Person person = gallery.person(id);
            if (!person.isDamaged) {
                found.add(person);
            }
        }
        Gallery.Person first = found.isEmpty() ? null : found.remove(0);
        return new Decision(first, found, at.isTooMany());
    }

    /**
     * Refuses pictures, by their template, that contradict who is enrolled: {@code own}, or {@link #NOBODY} for somebody new,
     * and the others. Throws LOW_QUALITY where they do not look like that person as enrolled, and {@link KnownFaceException}
     * where they look more like somebody else: one face under two names. A model without a threshold compares nothing.
     * Throws NOT_ENROLLED and CORRUPT_DATA as {@link #verify}.
     */
    public void checkStored(float[] template, int own) {
        if (own != NOBODY) {
            gallery.readable(own); // who is damaged looks like nobody
        }
        Map<Integer, float[][]> everybody = gallery.templates(model.modelId);
        double unlikeBelow;
        double alikeFrom;
        try {
            unlikeBelow = threshold();
            alikeFrom = among(everybody.size() + 1).value;
        } catch (MienException error) {
            if (error.code() == ErrorCode.CONFIG) {
                return;
            }
            throw error;
        }
        float[][] before = everybody.remove(own);
        double reached = score(before, template);
        List<String> names = new ArrayList<>();
        for (int id : reaching(everybody, template, Math.max(alikeFrom, reached))) {
            Gallery.Person person = gallery.person(id);
            if (!person.isDamaged) {
                names.add(person.name);
            }
        }
        String others = names.stream().map(Texts::isolated).collect(Collectors.joining(" and "));
        if (own != NOBODY && reached < unlikeBelow) {
            throw new MienException(
                    ErrorCode.LOW_QUALITY,
                    "these pictures do not look like that person as enrolled"
                            + (names.isEmpty() ? "" : ", but like " + others)
                            + "; nothing was stored: choose the right person, or add them anyway if you are sure");
        }
        if (!names.isEmpty()) {
            throw new KnownFaceException(
                    names,
                    "this is the face of " + others + ", who is enrolled already; nothing was stored: add pictures to that "
                            + "person, or enrol anyway if these are two people who look alike");
        }
    }

    /** Returns whose templates reach a threshold, the nearest first. */
    private static List<Integer> reaching(Map<Integer, float[][]> everybody, float[] probe, double threshold) {
        return reaching(everybody, probe, id -> threshold);
    }

    /** Returns whose personal templates reach the person's own threshold, the nearest first. */
    private static List<Integer> reaching(PersonalModel personal, Map<Integer, float[][]> everybody, float[][] probe) {
        Map<Integer, float[][]> templates = new LinkedHashMap<>();
        everybody.forEach((id, rows) -> templates.put(id, personal.branch.apply(rows)));
        return reaching(templates, personal.branch.apply(probe)[0], id -> personal.thresholds.get(id).value);
    }

    private static List<Integer> reaching(
            Map<Integer, float[][]> everybody, float[] probe, IntToDoubleFunction thresholds) {
        Map<Integer, Double> scores = new LinkedHashMap<>();
        for (Map.Entry<Integer, float[][]> each : everybody.entrySet()) {
            double score = score(each.getValue(), probe);
            if (score >= thresholds.applyAsDouble(each.getKey())) {
                scores.put(each.getKey(), score);
            }
        }
        List<Integer> found = new ArrayList<>(scores.keySet());
        Collections.sort(found, (one, other) -> Double.compare(scores.get(other), scores.get(one)));
        return found;
    }

    /** Returns the highest cosine to any template. */
    private static double score(float[][] templates, float[] probe) {
        double best = Double.NEGATIVE_INFINITY;
        for (float[] template : templates == null ? new float[0][] : templates) {
            double cosine = 0;
            for (int d = 0; d < probe.length; d++) {
                cosine += (double) template[d] * probe[d];
            }
            best = Math.max(best, cosine);
        }
        return best;
    }

    /** Returns the model's own threshold for one comparison; throws CONFIG without one. */
    public double threshold() {
        return Operating.of(model.spec.thresholds, model.modelId).value;
    }

    /** Returns the threshold of a search among so many; throws CONFIG as {@link #threshold}. */
    public Operating among(int numEnrolled) {
        return Operating.among(model.spec.thresholds, model.modelId, numEnrolled);
    }
}
