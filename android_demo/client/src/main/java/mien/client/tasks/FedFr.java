package mien.client.tasks;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.ParameterPart;
import mien.client.model.Parameters;
import mien.client.model.PublicShard;
import mien.client.train.Generator;
import mien.client.train.LocalSpec;
import mien.client.train.Objective;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * FedFR's device half: several people a phone, held apart from public ones whose proxies all phones share, and the branch of
 * Decoupled Feature Customization, which stays.
 *
 * <p>The source is {@code mien/methods/fedfr.py}.
 */
final class FedFr extends DeviceHalf {
    private static final String OWN = "local_proxies";
    private static final String PUBLIC = "public_proxies";
    private static final String PUBLIC_START = "public_proxies_at_start";
    private static final String PREVIOUS = "previous_part";
    private static final String PARTICIPATIONS = "participations";
    private static final List<String> BRANCH = Arrays.asList("pi_weight", "pi_bias", "omega", "omega_public", "bias");

    FedFr() {
        super("fedfr", OWN);
    }

    @Override
    List<String> told(TaskSpec task) {
        return Collections.singletonList(PUBLIC);
    }

    /** Twice more: the part that this phone ended its last round with, in its state and in a model of its own. */
    @Override
    int copies(TaskSpec task) {
        return Methods.PLAIN_COPIES + 2;
    }

    /** The options of a task, those that it leaves out as its preset has them. */
    private static final class Options {
        final int publicClasses;
        final double[] alpha = {1, 5, 10};
        final Map<String, Double> constants = new LinkedHashMap<>();
        final String branch;
        final boolean isDetached;
        final boolean aggregates;
        final double threshold;
        final int maxNegatives;
        final boolean startsAtRandom;
        final boolean weighsNegatives;
        final String firstContrast;
        final int firstEpochs;
        final double lrDrop;

        Options(TaskSpec task) {
            Fields options = task.options;
            String preset = options.text("preset", "recommended");
            boolean isCode = preset.equals("released_code");
            boolean isPublished = isCode || preset.equals("paper");
            choice(task, "preset", preset, "recommended", "paper", "released_code");
            publicClasses = (int) options.number("public_classes", 0);
            Methods.require(publicClasses > 0, task, "no people in the public shard,");
            if (options.has("alpha")) {
                List<?> given = options.list("alpha");
                Methods.require(given.size() == alpha.length, task, "other weights than of three losses");
                for (int i = 0; i < alpha.length; i++) {
                    alpha[i] = given.get(i) instanceof Number ? ((Number) given.get(i)).doubleValue() : -1;
                    Methods.require(alpha[i] >= 0 && alpha[i] <= Double.MAX_VALUE, task, "options.alpha = " + given);
                }
            }
            positive(task, "scale", 30);
            share(task, "margin", 0.4);
            positive(task, "temperature", 0.5);
            positive(task, "branch_scale", 30);
            share(task, "branch_margin", 0.4);
            positive(task, "exponent", 3);
            share(task, "balance", 0.7);
            constants.put("alpha_cosface", alpha[0]);
            constants.put("alpha_contrastive", alpha[1]);
            constants.put("alpha_branch", alpha[2]);
            branch = choice(task, "branch", options.text("branch", "binary"), "binary", "cosface", "none");
            isDetached = options.has("detach_branch") && options.flag("detach_branch");
            aggregates =
                    options.has("aggregate_public_head") ? options.flag("aggregate_public_head") : !isCode;
            threshold = options.real("hard_negative_threshold", 0.4);
            Methods.require(threshold >= -1 && threshold <= 1, task, "options.hard_negative_threshold = " + threshold);
            maxNegatives = count(task, "max_negatives", isPublished ? 0 : 256);
            String start = options.text("local_init", isCode ? "random" : "mean_feature");
            startsAtRandom = choice(task, "local_init", start, "mean_feature", "random").equals("random");
            String weight = options.text("weight", isCode ? "with_negatives" : "local");
            weighsNegatives = choice(task, "weight", weight, "local", "with_negatives").equals("with_negatives");
            String contrast = options.text("first_contrast", isCode ? "random" : isPublished ? "global" : "skip");
            firstContrast = choice(task, "first_contrast", contrast, "skip", "global", "random");
            firstEpochs = count(task, "first_epochs", isCode ? 10 : 0);
            lrDrop = options.real("lr_drop", isCode ? 0.75 : 0);
            Methods.require(lrDrop >= 0 && lrDrop < 1, task, "options.lr_drop = " + lrDrop);
        }

        private static String choice(TaskSpec task, String name, String chosen, String... known) {
            Methods.require(Arrays.asList(known).contains(chosen), task, "options." + name + " = " + chosen);
            return chosen;
        }

        private static int count(TaskSpec task, String name, int otherwise) {
            long value = task.options.number(name, otherwise);
            Methods.require(value >= 0 && value <= Integer.MAX_VALUE, task, "options." + name + " = " + value);
            return (int) value;
        }

        private void positive(TaskSpec task, String name, double otherwise) {
            double value = task.options.real(name, otherwise);
            Methods.require(value > 0 && value <= 1e4, task, "options." + name + " = " + value);
            constants.put(name, value);
        }

        private void share(TaskSpec task, String name, double otherwise) {
            double value = task.options.real(name, otherwise);
            Methods.require(value >= 0 && value < 1, task, "options." + name + " = " + value);
            constants.put(name, value);
        }
    }

    @Override
    void check(TaskSpec task) {
        Methods.require(task.reveals.isEmpty(), task, "privacy.reveals");
        Options options = new Options(task);
        boolean isClipped =
                options.aggregates && task.dp.isOn() && task.l2Clip <= Math.sqrt(options.publicClasses);
        Methods.require(!isClipped, task, "public people's proxies that are clipped under differential privacy,");
    }

    @Override
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        Options options = new Options(task);
        double clip = task.dp.isOn() ? 0 : 2 * Math.sqrt(options.publicClasses);
        return options.aggregates
                ? new ContributionLayout(
                        part, Collections.singletonMap("delta_public", options.publicClasses * dim), clip)
                : new ContributionLayout(part);
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        Options options = new Options(job.task);
        if (shard == null || shard.numIdentities != options.publicClasses) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "the task holds people apart from " + options.publicClasses + " public ones, and the model brings "
                            + (shard == null ? 0 : shard.numIdentities) + "; tell the operator");
        }
        Round round = new Round(job, faces, shard, options);
        LocalSpec local = schedule(job.task.local, options, participations(faces.state));
        return round.output(job.train(round.crops, round.objective(), local));
    }

    private static LocalSpec schedule(LocalSpec local, Options options, int participations) {
        int epochs = Math.max(local.epochs, options.firstEpochs - 2 * participations);
        return local.with(epochs, (int) Math.floor(options.lrDrop * epochs));
    }

    private static int participations(Map<String, Tensor> state) {
        Tensor kept = state.get(PARTICIPATIONS);
        return kept == null ? 0 : (int) kept.values()[0];
    }

    /** What a round trains on: own crops and hard negatives, their classes among own and public people's proxies. */
    private static final class Round {
        final byte[][] crops;
        private final Methods.Job job;
        private final RoundFaces faces;
        private final Options options;
        private final int[] classes;
        private final float[][] embeddings;
        private final float[][] ownProxies;
        private final float[] publicProxies;

        Round(Methods.Job job, RoundFaces faces, PublicShard shard, Options options) {
            this.job = job;
            this.faces = faces;
            this.options = options;
            float[][] own = job.embed(faces.crops);
            float[][] others = job.embed(shard);
            int[] chosen = hardNegatives(own, others, options.threshold, options.maxNegatives);
            float[][] start = firstLocal(own);
            Tensor kept = carriedOver(faces.state.get(OWN), Rows.joined(start), start.length, job.dim());
            ownProxies = Rows.rows(kept, job.dim());
            publicProxies = publicProxies(others, shard);
            crops = Arrays.copyOf(faces.crops, own.length + chosen.length);
            classes = Arrays.copyOf(faces.labels, crops.length);
            embeddings = Arrays.copyOf(own, crops.length);
            for (int i = 0; i < chosen.length; i++) {
                crops[own.length + i] = shard.crop(chosen[i]);
                classes[own.length + i] = ownProxies.length + shard.labels[chosen[i]];
                embeddings[own.length + i] = others[chosen[i]];
            }
        }

        private float[][] firstLocal(float[][] own) {
            int numPeople = faces.numPeople();
            if (!options.startsAtRandom) {
                return Rows.means(own, faces.labels, numPeople);
            }
            return OwnClasses.drawn(job.seed, numPeople, job.dim());
        }

        /** Returns public people's proxies as the round starts: the server's, else their mean features. */
        private float[] publicProxies(float[][] others, PublicShard shard) {
            int size = options.publicClasses * job.dim();
            float[] known = options.aggregates ? job.told.vector(PUBLIC, size) : null;
            Tensor kept = options.aggregates ? null : faces.state.get(PUBLIC_START);
            if (kept != null && kept.values().length != size) {
                throw new MienException(
                        ErrorCode.LAYOUT_MISMATCH, "the public proxies that were kept are another model's; leave the task");
            }
            known = kept == null ? known : kept.values();
            return known == null ? Rows.joined(Rows.means(others, shard.labels, options.publicClasses)) : known;
        }

        Objective objective() {
            Parameters previous = options.alpha[1] > 0 ? previous() : null;
            String form = "fedfr" + (previous == null ? "" : "_contrastive");
            if (!options.branch.equals("none")) {
                form += options.branch.equals("binary") ? "_branch" : "_cosface_branch";
                form += options.isDetached ? "_detached" : "_joint";
            }
            int dim = job.dim();
            Objective objective =
                    new Objective(form)
                            .trained(OWN, Rows.tensor(ownProxies), false)
                            .trained(PUBLIC, new Tensor(publicProxies, options.publicClasses, dim), false)
                            .rows("target", Rows.oneHot(classes, ownProxies.length + options.publicClasses));
            options.constants.forEach(objective::constant);
            addBranch(objective, dim);
            if (previous != null) {
                objective.rows("global_features", bothWays(job.parameters(), embeddings));
                objective.rows("previous_features", bothWays(previous, job.embed(previous, crops)));
            }
            return objective;
        }

        /** Adds the branch as it was kept, else the identity, copies of the proxies, and zeros. */
        private void addBranch(Objective objective, int dim) {
            if (options.branch.equals("none")) {
                return;
            }
            float[] identity = new float[dim * dim];
            for (int d = 0; d < dim; d++) {
                identity[d * (dim + 1)] = 1;
            }
            trained(objective, "pi_weight", identity, dim, dim);
            trained(objective, "pi_bias", new float[dim], dim);
            trained(objective, "omega", Rows.joined(ownProxies), ownProxies.length, dim);
            if (options.branch.equals("binary")) {
                trained(objective, "bias", new float[ownProxies.length], ownProxies.length);
            } else {
                trained(objective, "omega_public", publicProxies, options.publicClasses, dim);
            }
        }

        private void trained(Objective objective, String name, float[] start, long... shape) {
            objective.trained(name, carriedOver(faces.state.get(name), start, shape), false);
        }

        /** Returns this device's model at the end of its last round, or what stands for it in the first; null: nothing. */
        private Parameters previous() {
            Tensor kept = faces.state.get(PREVIOUS);
            if (kept != null && kept.values().length == job.part.size) {
                return job.parameters().with(job.part, kept.values());
            }
            switch (options.firstContrast) {
                case "skip":
                    return null;
                case "global":
                    return job.parameters();
                default:
                    // A phone cannot draw a network, but its trained part in random order is as good as untrained.
                    float[] shuffled = new Generator(job.seed, 1).permutation(job.parameters().gather(job.part));
                    return job.parameters().with(job.part, shuffled);
            }
        }

        /** Returns features of each crop and of its mirror image; twice the first where none is mirrored. */
        private Tensor bothWays(Parameters parameters, float[][] plain) {
            float[][] mirrored = job.task.local.flip ? job.embed(parameters, job.mirrored(crops)) : plain;
            float[][] both = new float[2 * plain.length][];
            for (int i = 0; i < plain.length; i++) {
                both[2 * i] = plain[i];
                both[2 * i + 1] = mirrored[i];
            }
            return new Tensor(Rows.joined(both), plain.length, 2, job.dim());
        }

        Methods.Output output(Trained trained) {
            int weight = job.weight(options.weighsNegatives ? crops.length : faces.crops.length);
            Map<String, Tensor> state = new LinkedHashMap<>();
            List<String> names = new ArrayList<>(BRANCH);
            names.add(OWN);
            for (String name : names) {
                if (trained.privateTensors.containsKey(name)) {
                    state.put(name, trained.privateTensors.get(name));
                }
            }
            state.put(PREVIOUS, Tensor.vector(trained.values));
            state.put(PARTICIPATIONS, Tensor.vector(new float[] {participations(faces.state) + 1}));
            if (!options.aggregates) {
                Tensor kept = faces.state.get(PUBLIC_START);
                state.put(PUBLIC_START, kept == null ? Tensor.vector(publicProxies) : kept);
                return job.output(weight, trained, state);
            }
            // The server's proxies are zero until the first round has told it where they start.
            boolean isKnown = job.told.vector(PUBLIC, publicProxies.length) != null;
            float[] change = trained.privateTensors.get(PUBLIC).values().clone();
            for (int i = 0; i < change.length; i++) {
                change[i] = weight * (change[i] - (isKnown ? publicProxies[i] : 0));
            }
            return job.output(weight, trained, state, change);
        }
    }

    /** Returns the public images, in order, that are nearer to an own image than a cosine; of too many the nearest. */
    static int[] hardNegatives(float[][] own, float[][] others, double threshold, int most) {
        float[] nearest = new float[others.length];
        List<Integer> kept = new ArrayList<>();
        for (int i = 0; i < others.length; i++) {
            nearest[i] = Float.NEGATIVE_INFINITY;
            for (float[] row : own) {
                float cosine = 0;
                for (int d = 0; d < row.length; d++) {
                    cosine += others[i][d] * row[d];
                }
                nearest[i] = Math.max(nearest[i], cosine);
            }
            if (nearest[i] > (float) threshold) {
                kept.add(i);
            }
        }
        if (most > 0 && kept.size() > most) {
            kept.sort((one, other) -> Float.compare(nearest[other], nearest[one]));
            kept = kept.subList(0, most);
        }
        return kept.stream().mapToInt(i -> i).sorted().toArray();
    }

    /** Returns {@code start}, its first rows as they were kept, where these are of the same width. */
    private static Tensor carriedOver(Tensor kept, float[] start, long... shape) {
        boolean fits = kept != null && kept.shape.length == shape.length;
        for (int axis = 1; fits && axis < shape.length; axis++) {
            fits = kept.shape[axis] == shape[axis];
        }
        float[] values = start.clone();
        if (fits) {
            System.arraycopy(kept.values(), 0, values, 0, Math.min(kept.values().length, values.length));
        }
        return new Tensor(values, shape);
    }
}
