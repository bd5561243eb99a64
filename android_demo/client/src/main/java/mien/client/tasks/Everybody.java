package mien.client.tasks;

import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.train.Objective;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * FedFace against everybody: a softmax between the phone's own person and all others, of whom two summed moments are
 * known.
 *
 * <p>The source is {@code mien/methods/everybody.py}. The moments are those that the round before opened, which had this
 * phone's own part in them or not.
 */
final class Everybody {
    static final String FORM = "everybody";
    private static final String MOMENT = "moment";
    private static final String NUMBER = "moment_number";
    private static final String DEVICES = "moment_devices";
    private static final String MEAN = "moment_mean";
    private static final String EARLIER = "earlier_part";
    /** What all devices of a round are told alike, in the order in which it is hashed. */
    static final List<String> SHARED =
            Collections.unmodifiableList(Arrays.asList(MOMENT, NUMBER, DEVICES, MEAN, EARLIER));

    private static final String OWN = "class_embedding";
    private static final String OWN_NUMBER = "own_moment_number";
    private static final double SQRT_2 = Math.sqrt(2);

    /** What the last opened sums tell: own class embeddings of then, and the others of then. */
    private static final class Opened {
        final float[][] own;
        final int others;
        final double[] mean;
        final double[][] covariance;

        Opened(float[][] own, int others, double[] mean, double[][] covariance) {
            this.own = own;
            this.others = others;
            this.mean = mean;
            this.covariance = covariance;
        }
    }

    private Everybody() {}

    static void check(TaskSpec task) {
        double[] spec = spec(task.options);
        Methods.require(spec[0] > 0 && spec[0] <= 1e3, task, "options.everybody.scale = " + spec[0]);
        Methods.require(spec[1] >= 0 && spec[1] < 1, task, "options.everybody.margin = " + spec[1]);
        Methods.require(task.profile != null, task, "plain sums of moments, each of which is a phone's template,");
        Methods.require(task.groups == 1, task, "sums of moments over groups, which tell more of each phone,");
        boolean isSaid = task.reveals.equals(Collections.singleton(Agreement.CLASS_MOMENT));
        Methods.require(
                isSaid || task.reveals.isEmpty() && task.dp.isOn(), task, "sums of moments without saying exactly so");
        Methods.require(task.rounds > 1, task, "a single round, whose moments nobody would use,");
    }

    /** Returns scale and margin. */
    private static double[] spec(Fields options) {
        double[] spec = {16.0, 0.2};
        if (options.has(FORM)) {
            Fields given = options.object(FORM);
            spec[0] = given.real("scale", spec[0]);
            spec[1] = given.real("margin", spec[1]);
            given.end();
        }
        return spec;
    }

    /** Returns the lanes that are sent beside the update. */
    static Map<String, Integer> lanes(int dim) {
        Map<String, Integer> lanes = new LinkedHashMap<>();
        lanes.put(MEAN, dim);
        lanes.put(MOMENT, packedSize(dim));
        return lanes;
    }

    private static int packedSize(int dim) {
        return dim * (dim + 1) / 2;
    }

    static Methods.Output run(Methods.Job job, RoundFaces faces) {
        int dim = job.dim();
        int number = job.told.number(NUMBER);
        float[][] now = Rows.means(job.embed(faces.crops), faces.labels, faces.numPeople());
        Opened opened = number > 0 ? opened(job, faces, number) : nothingOpened(job, now);
        double[] spec = spec(job.task.options);
        Objective objective =
                new Objective("moment_softmax")
                        .fixed("class_embeddings", Rows.tensor(opened.own))
                        .fixed("mean", Tensor.vector(floats(opened.mean)))
                        .fixed("covariance", Rows.tensor(floats(opened.covariance)))
                        .rows("target", Rows.oneHot(faces.labels, now.length))
                        .constant("log_others", Math.log(opened.others))
                        .constant("scale", spec[0])
                        .constant("margin", spec[1]);
        Trained trained = job.train(faces.crops, objective);
        float[] sums = Arrays.copyOf(mean(now), dim + packedSize(dim));
        System.arraycopy(moment(now), 0, sums, dim, packedSize(dim));
        Map<String, Tensor> after = new LinkedHashMap<>();
        after.put(OWN, Tensor.vector(Rows.joined(now)));
        after.put(OWN_NUMBER, Tensor.vector(new float[] {number + 1}));
        return job.output(trained, faces, after, sums);
    }

    /** What stands for the others before anything is known of them: directions that are drawn evenly. */
    private static Opened nothingOpened(Methods.Job job, float[][] now) {
        double[][] even = new double[job.dim()][job.dim()];
        for (int d = 0; d < even.length; d++) {
            even[d][d] = 1.0 / even.length;
        }
        return new Opened(now, Math.max(1, job.task.smallestSum - 1), new double[job.dim()], even);
    }

    /**
     * Returns sum number {@code number} as this device sees it, without its own part. Throws CORRUPT_DATA for a server that
     * tells of sums and not the sums themselves, or of none but this device's.
     */
    private static Opened opened(Methods.Job job, RoundFaces faces, int number) {
        int dim = job.dim();
        float[] mean = job.told.vector(MEAN, dim);
        float[] moment = job.told.vector(MOMENT, packedSize(dim));
        float[] earlier = job.told.vector(EARLIER, job.part.size);
        float[][] own = own(faces.state, number, dim);
        int others = job.told.number(DEVICES) - (own == null ? 0 : 1);
        if (mean == null || moment == null || earlier == null || others < 1) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "the server told of sums of moments and not what they are, or of nobody else's; leave the round, tell the"
                            + " operator");
        }
        float[] ownMean = own == null ? new float[dim] : mean(own);
        float[] ownMoment = own == null ? new float[moment.length] : moment(own);
        double[] mu = new double[dim];
        for (int d = 0; d < dim; d++) {
            mu[d] = ((double) mean[d] - ownMean[d]) / others;
        }
        double[][] covariance = new double[dim][dim];
        int at = 0;
        for (int row = 0; row < dim; row++) {
            for (int column = row; column < dim; column++, at++) {
                double rest = ((double) moment[at] - ownMoment[at]) / (row == column ? 1 : SQRT_2);
                covariance[row][column] = rest / others - mu[row] * mu[column];
                covariance[column][row] = covariance[row][column];
            }
        }
        if (own == null || own.length != faces.numPeople()) {
            own = Rows.means(job.embedEarlier(earlier, faces.crops), faces.labels, faces.numPeople());
        }
        return new Opened(own, others, mu, covariance);
    }

    /** Returns the device's class embeddings that are in a sum, by its number; null if none are. */
    private static float[][] own(Map<String, Tensor> state, int number, int dim) {
        Tensor kept = state.get(OWN);
        Tensor when = state.get(OWN_NUMBER);
        boolean isIn = kept != null && when != null && when.values().length == 1 && (int) when.values()[0] == number;
        return isIn ? Rows.rows(new Tensor(kept.values(), kept.values().length / dim, dim), dim) : null;
    }

    private static float[] mean(float[][] rows) {
        float[] mean = new float[rows[0].length];
        for (float[] row : rows) {
            for (int d = 0; d < mean.length; d++) {
                mean[d] += row[d] / rows.length;
            }
        }
        return mean;
    }

    /** Returns the mean of w w' over rows at length 1, packed: the upper triangle, off the diagonal times sqrt(2). */
    private static float[] moment(float[][] rows) {
        int dim = rows[0].length;
        double[] packed = new double[packedSize(dim)];
        for (float[] row : rows) {
            double squares = 0;
            for (float value : row) {
                squares += (double) value * value;
            }
            int at = 0;
            for (int i = 0; i < dim; i++) {
                for (int j = i; j < dim; j++, at++) {
                    packed[at] += (i == j ? 1 : SQRT_2) * row[i] * row[j] / squares / rows.length;
                }
            }
        }
        return floats(packed);
    }

    private static float[][] floats(double[][] rows) {
        float[][] converted = new float[rows.length][];
        for (int i = 0; i < rows.length; i++) {
            converted[i] = floats(rows[i]);
        }
        return converted;
    }

    private static float[] floats(double[] values) {
        float[] converted = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            converted[i] = (float) values[i];
        }
        return converted;
    }
}
