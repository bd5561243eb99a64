package mien.client.tasks;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.Indices;
import mien.client.model.ParameterPart;
import mien.client.model.Parameters;
import mien.client.model.PublicShard;
import mien.client.train.Generator;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;

/**
 * Federated evaluation's device half: a phone measures a model, or two, on its own pictures, as it would verify with it; shares
 * of its comparisons are all that is summed. Nothing is trained, and nothing kept.
 *
 * <p>The source is {@code mien/methods/federated_evaluation.py}, of the addends {@code mien/evaluation/fleet.py}.
 */
final class Evaluation extends DeviceHalf {
    private static final int MOST_MATED = 100;
    private static final int MOST_NON_MATED = 10_000;
    /** The score of a picture that the model gives no usable embedding: it matches nobody. */
    private static final double FAILED = -1;

    private static final double SHORTEST = 1e-6;

    /** The scores of a phone's comparisons under one model. */
    private static final class Scores {
        final double[] mated;
        final double[] nonMated;

        Scores(List<Double> mated, List<Double> nonMated) {
            this.mated = mated.stream().mapToDouble(score -> score).toArray();
            this.nonMated = nonMated.stream().mapToDouble(score -> score).toArray();
        }
    }

    Evaluation() {
        super("federated_evaluation");
    }

    @Override
    boolean trains() {
        return false;
    }

    @Override
    boolean measures() {
        return true;
    }

    @Override
    List<String> otherModels(TaskSpec task) {
        String reference = reference(task);
        return reference.isEmpty() ? Collections.<String>emptyList() : Collections.singletonList(reference);
    }

    private static String reference(TaskSpec task) {
        return task.options.text("reference", "");
    }

    private static int bins(TaskSpec task) {
        return (int) task.options.number("bins", 400);
    }

    private static long publicImages(TaskSpec task) {
        return task.options.number("public_images", 256);
    }

    /** Returns the model's threshold, then the reference's where there is one. */
    private static double[] thresholds(TaskSpec task) {
        double own = task.options.real("threshold");
        return reference(task).isEmpty()
                ? new double[] {own}
                : new double[] {own, task.options.real("reference_threshold")};
    }

    @Override
    void check(TaskSpec task) {
        Fields options = task.options;
        String reference = reference(task);
        Methods.require(reference.isEmpty() || Bytes.isSha256(reference), task, "options.reference");
        boolean isPaired = !reference.isEmpty();
        Methods.require(isPaired == options.has("reference_threshold"), task, "one threshold for two models,");
        for (double threshold : thresholds(task)) {
            Methods.require(threshold >= -1 && threshold <= 1, task, "a threshold of " + threshold);
        }
        double share = options.real("share", 1);
        Methods.require(share > 0 && share <= 1, task, "options.share = " + share);
        long bins = options.number("bins", 400);
        Methods.require(bins >= 20 && bins <= 4000, task, "options.bins = " + bins);
        long images = publicImages(task);
        Methods.require(images >= 0 && images <= 100_000, task, "options.public_images = " + images);
        Methods.require(task.reveals.isEmpty(), task, "privacy.reveals");
        Methods.require(!task.dp.isOn(), task, "noise, which would hide what is measured,");
        Methods.require(task.groups == 1, task, "sums of scores over groups");
        // Shares sum to 1, and all other numbers are 1 at most: cut they would be no histograms any more.
        int models = isPaired ? 2 : 1;
        double longest = Math.sqrt(models * (6 + 2.0 * bins) + 4 + (isPaired ? 4 : 0));
        boolean fits = task.coordinateClip >= 1 && task.l2Clip >= longest * (1 - 1e-6);
        Methods.require(fits, task, "histograms that are clipped,");
    }

    @Override
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        boolean isPaired = !reference(task).isEmpty();
        Map<String, Integer> lanes = new LinkedHashMap<>();
        for (String prefix : isPaired ? Arrays.asList("", "reference_") : Arrays.asList("")) {
            for (String histogram : new String[] {"mated", "non_mated", "mated_squares", "non_mated_squares"}) {
                lanes.put(prefix + histogram, bins(task));
            }
            lanes.put(prefix + "at_threshold", 4);
        }
        lanes.put("phones", 2);
        lanes.put("comparisons", 2);
        if (isPaired) {
            lanes.put("difference", 4);
        }
        return new ContributionLayout(lanes);
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        if (shard == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "the model came without public faces to compare with; tell the operator");
        }
        int[] chosen = chosen(job.task, shard.numCrops());
        List<Parameters> models = new ArrayList<>(Collections.singletonList(job.parameters()));
        for (String other : otherModels(job.task)) {
            models.add(job.parametersOf(other));
        }
        float[][][] own = new float[models.size()][][];
        float[][][] others = new float[models.size()][][];
        for (int i = 0; i < own.length; i++) {
            own[i] = job.embed(models.get(i), faces.crops);
            others[i] = job.embed(models.get(i), shard, chosen);
        }
        byte[] contribution = contribution(job.layout, job.task, own, faces.labels, others);
        return new Methods.Output(contribution, Collections.<String, Tensor>emptyMap());
    }

    /** Returns which public crops every phone of a round compares with, in order. */
    static int[] chosen(TaskSpec task, int count) {
        long most = publicImages(task);
        return most == 0 || most >= count
                ? Indices.upTo(count)
                : new Generator(task.seed).choice(count, (int) most);
    }

    /**
     * Returns a phone's addends: its own pictures' embeddings by model (N, D), whose people {@code labels} number, and
     * public people's (K, D).
     */
    static byte[] contribution(
            ContributionLayout layout, TaskSpec task, float[][][] own, int[] labels, float[][][] others) {
        int bins = bins(task);
        double[] thresholds = thresholds(task);
        double[][] accepted = new double[own.length][];
        float[] update = new float[layout.updateSize()];
        int at = 0;
        for (int i = 0; i < own.length; i++) {
            Scores scores = compare(unit(own[i]), labels, unit(others[i]));
            double[] mated = shares(scores.mated, bins);
            double[] nonMated = shares(scores.nonMated, bins);
            double tar = share(scores.mated, thresholds[i]);
            double fmr = share(scores.nonMated, thresholds[i]);
            for (double[] each :
                    new double[][] {mated, nonMated, squares(mated), squares(nonMated), {tar, tar * tar, fmr, fmr * fmr}}) {
                at = put(update, at, each);
            }
            accepted[i] = new double[] {tar, fmr, scores.mated.length, scores.nonMated.length};
        }
        double numMated = accepted[0][2];
        double numNonMated = accepted[0][3];
        at = put(update, at, numMated > 0 ? 1 : 0, numNonMated > 0 ? 1 : 0);
        at = put(
                update, at,
                Math.min(numMated, MOST_MATED) / MOST_MATED, Math.min(numNonMated, MOST_NON_MATED) / MOST_NON_MATED);
        if (own.length > 1) {
            double change = accepted[0][0] - accepted[1][0];
            double rise = accepted[0][1] - accepted[1][1];
            put(update, at, change, change * change, rise, rise * rise);
        }
        return layout.pack(update);
    }

    private static int put(float[] update, int start, double... values) {
        for (int i = 0; i < values.length; i++) {
            update[start + i] = (float) values[i];
        }
        return start + values.length;
    }

    /** Returns comparisons of each picture with the template of its person's others, and of others' with templates. */
    private static Scores compare(double[][] own, int[] labels, double[][] others) {
        List<Double> mated = new ArrayList<>();
        List<Double> nonMated = new ArrayList<>();
        for (int person : Arrays.stream(labels).distinct().sorted().toArray()) {
            double[] sum = new double[own[0].length];
            int count = 0;
            for (int i = 0; i < own.length; i++) {
                count += labels[i] == person ? 1 : 0;
                for (int d = 0; labels[i] == person && d < sum.length; d++) {
                    sum[d] += own[i][d];
                }
            }
            double[] template = unit(sum.clone());
            for (int i = 0; i < own.length; i++) {
                if (labels[i] != person) {
                    nonMated.add(score(own[i], template));
                } else if (count > 1) {
                    double[] rest = sum.clone();
                    for (int d = 0; d < rest.length; d++) {
                        rest[d] -= own[i][d];
                    }
                    mated.add(score(own[i], unit(rest)));
                }
            }
            for (double[] other : others) {
                nonMated.add(score(other, template));
            }
        }
        return new Scores(mated, nonMated);
    }

    private static double score(double[] probe, double[] template) {
        double product = 0;
        boolean isProbe = false;
        boolean isTemplate = false;
        for (int d = 0; d < probe.length; d++) {
            product += probe[d] * template[d];
            isProbe |= probe[d] != 0;
            isTemplate |= template[d] != 0;
        }
        return isProbe && isTemplate ? Math.max(-1, Math.min(1, product)) : FAILED;
    }

    private static double[][] unit(float[][] rows) {
        double[][] unit = new double[rows.length][];
        for (int i = 0; i < unit.length; i++) {
            unit[i] = new double[rows[i].length];
            for (int d = 0; d < unit[i].length; d++) {
                unit[i][d] = rows[i][d];
            }
            unit(unit[i]);
        }
        return unit;
    }

    /** Brings a row to length 1, or to zeros where it has no direction, and returns it. */
    private static double[] unit(double[] row) {
        double squares = 0;
        for (double value : row) {
            squares += value * value;
        }
        double length = Math.sqrt(squares);
        for (int d = 0; d < row.length; d++) {
            row[d] = length > SHORTEST && length <= Double.MAX_VALUE ? row[d] / length : 0;
        }
        return row;
    }

    private static double share(double[] scores, double threshold) {
        long accepted = Arrays.stream(scores).filter(score -> score >= threshold).count();
        return scores.length == 0 ? 0 : (double) accepted / scores.length;
    }

    /** Returns which share of scores lies in each of so many equal bins of [-1, 1]. */
    private static double[] shares(double[] scores, int bins) {
        long[] counts = new long[bins];
        for (double score : scores) {
            int bin = Math.min((int) ((score + 1) * (bins / 2.0)), bins - 1);
            // The product rounds: a score next to an edge may have landed on its wrong side.
            bin -= score < edge(bin, bins) ? 1 : 0;
            bin += bin < bins - 1 && score >= edge(bin + 1, bins) ? 1 : 0;
            counts[bin]++;
        }
        double[] shares = new double[bins];
        for (int bin = 0; bin < bins; bin++) {
            shares[bin] = (double) counts[bin] / Math.max(scores.length, 1);
        }
        return shares;
    }

    /** Returns the lower edge of a bin as numpy's linspace has it. */
    private static double edge(int bin, int bins) {
        return bin == bins ? 1 : bin * (2.0 / bins) - 1;
    }

    /** Returns the squares of the shares that lie at or above each bin's lower edge. */
    private static double[] squares(double[] shares) {
        double[] squares = new double[shares.length];
        double above = 0;
        for (int bin = shares.length - 1; bin >= 0; bin--) {
            above += shares[bin];
            squares[bin] = above * above;
        }
        return squares;
    }
}
