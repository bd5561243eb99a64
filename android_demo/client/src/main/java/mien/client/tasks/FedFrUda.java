package mien.client.tasks;

import java.util.Arrays;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.PublicShard;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * FedFR-UDA's target: a device that clusters its pictures, whosever they are, with the model of its first round, and trains a
 * classifier over the clusters that stays.
 *
 * <p>The source is {@code mien/methods/fedfr_uda.py}. The labelled source of the paper is a data set that an operator holds,
 * and so never a phone of this program: what a task says of it is read and left to others.
 */
final class FedFrUda extends DeviceHalf {
    private static final String LABELS = "labels";
    private static final String BY_DISTANCE = "c_finch";
    private static final int MOST_STEPS = 1_000_000;

    FedFrUda() {
        super("fedfr_uda");
    }

    /** The options of a task. */
    private static final class Options {
        final String head;
        final double scale;
        final double margin;
        final int weight;
        final boolean isByDistance;
        /** 0: the one that finds the people of the public faces again, or keeps them apart as {@code purity} asks. */
        final double distance;
        /** 0: none is asked. */
        final double purity;

        final int maxLevels;
        final boolean isCosine;
        final int level;
        final int minImages;

        Options(TaskSpec task) {
            Fields options = task.options;
            head = OwnClasses.choice(task, "head", options, "arcface", "cosface", "softmax");
            scale = options.real("scale", 64);
            margin = options.real("margin", 0.5);
            Methods.require(scale > 0 && scale <= 1e4, task, "options.scale = " + scale);
            Methods.require(margin >= 0 && margin < Math.PI / 2, task, "options.margin = " + margin);
            double constraint = options.real("domain_constraint", 0.002);
            boolean isConstraint = constraint >= 0 && constraint <= Double.MAX_VALUE;
            Methods.require(isConstraint, task, "options.domain_constraint = " + constraint);
            whole(task, options, "constraint_steps", 0, 0, MOST_STEPS);
            whole(task, options, "source_weight", 1, 1, Integer.MAX_VALUE);
            weight = whole(task, options, "target_weight", 1, 1, Integer.MAX_VALUE);
            Fields of = options.has("clustering") ? options.object("clustering") : null;
            isByDistance = OwnClasses.choice(task, "algorithm", of, BY_DISTANCE, "finch").equals(BY_DISTANCE);
            distance = of == null ? 1.2 : of.real("distance", 1.2);
            Methods.require(distance >= 0 && distance <= 2, task, "options.clustering.distance = " + distance);
            purity = of == null ? 0 : of.real("purity", 0);
            boolean isPurity = purity == 0 || purity > 0 && purity <= 1 && isByDistance && distance == 0;
            Methods.require(isPurity, task, "options.clustering.purity = " + purity);
            maxLevels = whole(task, of, "max_levels", 0, 0, 64);
            isCosine = OwnClasses.choice(task, "metric", of, "euclidean", "cosine").equals("cosine");
            level = whole(task, of, "level", 0, Integer.MIN_VALUE, Integer.MAX_VALUE);
            minImages = whole(task, of, "min_images", 1, 1, Integer.MAX_VALUE);
            if (of != null) {
                of.end();
            }
        }

        private static int whole(TaskSpec task, Fields of, String name, int otherwise, int least, int most) {
            long value = of == null ? otherwise : of.number(name, otherwise);
            Methods.require(value >= least && value <= most, task, "options: " + name + " = " + value);
            return (int) value;
        }
    }

    @Override
    void check(TaskSpec task) {
        Methods.require(task.reveals.isEmpty(), task, "privacy.reveals");
        new Options(task);
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        Options options = new Options(job.task);
        int[] labels = kept(faces);
        float[][] classes = labels == null ? new float[0][] : Rows.rows(faces.state.get(OwnClasses.MANY), job.dim());
        if (classes.length == 0) {
            float[][] embeddings = job.embed(faces.crops);
            labels = labels == null ? clustered(job, embeddings, options, shard) : labels;
            classes = Rows.means(embeddings, labels, RoundFaces.count(labels));
        }
        int[] used = largeEnough(labels, options.minImages);
        byte[][] crops = new byte[used.length][];
        int[] target = new int[used.length];
        for (int i = 0; i < used.length; i++) {
            crops[i] = faces.crops[used[i]];
            target[i] = labels[used[i]];
        }
        Trained trained =
                job.train(crops, OwnClasses.head(options.head, target, classes, options.scale, options.margin));
        Map<String, Tensor> state = OwnClasses.kept(trained, OwnClasses.MANY, OwnClasses.MANY, job.dim());
        float[] numbers = new float[labels.length];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = labels[i];
        }
        state.put(LABELS, Tensor.vector(numbers));
        return job.output(job.weight(options.weight), trained, state);
    }

    /** Returns the labels that these pictures were given in the first round, null where they are others now. */
    private static int[] kept(RoundFaces faces) {
        Tensor kept = faces.state.get(LABELS);
        if (kept == null || kept.values().length != faces.crops.length) {
            return null;
        }
        int[] labels = new int[faces.crops.length];
        for (int i = 0; i < labels.length; i++) {
            labels[i] = (int) kept.values()[i];
        }
        return labels;
    }

    /** Returns the pseudo labels of pictures by their embeddings. */
    private static int[] clustered(Methods.Job job, float[][] embeddings, Options options, PublicShard shard) {
        Clusters clusters = new Clusters(embeddings, options.isCosine);
        if (!options.isByDistance) {
            return clusters.at(options.level);
        }
        double distance = options.distance > 0 ? options.distance : measured(job, embeddings.length, options, shard);
        return clusters.within(distance, options.maxLevels);
    }

    private static double measured(Methods.Job job, int numImages, Options options, PublicShard shard) {
        if (shard == null) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "the task measures on public faces how far people lie apart, and the model has none; tell the operator");
        }
        float[][] embeddings = job.embed(shard);
        if (options.purity > 0) {
            return Clusters.pure(
                    embeddings, shard.labels, options.purity, numImages, options.isCosine, options.maxLevels);
        }
        return new Clusters(embeddings, options.isCosine).calibrated(shard.labels, options.maxLevels);
    }

    /** Returns the pictures whose cluster has enough of them, all where none has. */
    static int[] largeEnough(int[] labels, int minImages) {
        int[] counts = new int[RoundFaces.count(labels)];
        for (int label : labels) {
            counts[label]++;
        }
        int[] used = new int[labels.length];
        int found = 0;
        for (int i = 0; i < labels.length; i++) {
            if (counts[labels[i]] >= minImages) {
                used[found++] = i;
            }
        }
        for (int i = 0; found == 0 && i < used.length; i++) {
            used[i] = i;
        }
        return Arrays.copyOf(used, found == 0 ? used.length : found);
    }
}
