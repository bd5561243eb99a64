package mien.client.people;

import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.FaceInput;
import mien.client.model.Model;
import mien.client.model.ModelSpec;
import mien.client.train.GraphRuntime;

/** Verifies and identifies aligned crops against the gallery, at the threshold that came with the model. */
public final class Recogniser {
    /** The false match rate to stay under. */
    private static final double MAX_FMR = 1e-3;
    /** In the place of a person's number, which is at least 1. */
    private static final int NOBODY = 0;

    public final Model model;
    private final GraphRuntime runtime;
    private final Gallery gallery;

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
        return runtime.embed(model.theta, fitted);
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
        return new Decision(score(templates, embed(new byte[][] {crop})[0]) >= threshold ? claimed : null);
    }

    /** Returns who of the gallery a crop shows, if anybody. Throws NOT_ENROLLED while nobody is enrolled. */
    public Decision identify(byte[] crop) {
        Map<Integer, float[][]> everybody = gallery.templates(model.modelId);
        if (everybody.isEmpty()) {
            throw new MienException(ErrorCode.NOT_ENROLLED, "nobody is enrolled yet; enrol somebody first");
        }
        double threshold = threshold();
        float[] probe = embed(new byte[][] {crop})[0];
        while (true) {
            int found = nearest(everybody, probe, threshold);
            Gallery.Person person = found == NOBODY ? null : gallery.person(found);
            if (person == null || !person.isDamaged) {
                return new Decision(person);
            }
            everybody.remove(found);
        }
    }

    /** Returns whose template is the nearest, NOBODY where none is near enough. */
    private static int nearest(Map<Integer, float[][]> everybody, float[] probe, double threshold) {
        int best = NOBODY;
        double highest = Double.NEGATIVE_INFINITY;
        for (Map.Entry<Integer, float[][]> each : everybody.entrySet()) {
            double score = score(each.getValue(), probe);
            if (score > highest) {
                highest = score;
                best = each.getKey();
            }
        }
        return highest >= threshold ? best : NOBODY;
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

    /** Returns the model's own threshold with the highest false match rate that is low enough; throws CONFIG without one. */
    public double threshold() {
        ModelSpec.Threshold best = null;
        for (ModelSpec.Threshold each : model.spec.thresholds) {
            boolean counts = each.modelId.equals(model.modelId) && each.fmr <= MAX_FMR;
            if (counts && (best == null || each.fmr > best.fmr || (each.fmr == best.fmr && each.value < best.value))) {
                best = each;
            }
        }
        if (best == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "the model has no threshold yet, so nobody can be verified; ask the operator");
        }
        return best.value;
    }
}
