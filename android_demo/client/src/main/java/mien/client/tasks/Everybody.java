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
    private static final String EARLIER = "earlier_part";
    /** What all devices of a round are told alike, in the order in which it is hashed. */
    static final List<String> SHARED =
            Collections.unmodifiableList(
                    Arrays.asList(Moments.MOMENT, Moments.NUMBER, Moments.DEVICES, Moments.MEAN, EARLIER));

    private static final String OWN = "class_embedding";

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
        Moments.check(task);
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
        lanes.put(Moments.MEAN, dim);
        lanes.put(Moments.MOMENT, Moments.packedSize(dim));
        return lanes;
    }

    static Methods.Output run(Methods.Job job, RoundFaces faces) {
        int dim = job.dim();
        int number = job.told.number(Moments.NUMBER);
        float[][] now = Rows.means(job.embed(faces.crops), faces.labels, faces.numPeople());
        Opened opened = number > 0 ? opened(job, faces, number) : nothingOpened(job, now);
        double[] spec = spec(job.task.options);
        Objective objective =
                new Objective("moment_softmax")
                        .fixed("class_embeddings", Rows.tensor(opened.own))
                        .fixed("mean", Tensor.vector(Moments.floats(opened.mean)))
                        .fixed("covariance", Rows.tensor(floats(opened.covariance)))
                        .rows("target", Rows.oneHot(faces.labels, now.length))
                        .constant("log_others", Math.log(opened.others))
                        .constant("scale", spec[0])
                        .constant("margin", spec[1]);
        Trained trained = job.train(faces.crops, objective);
        float[] sums = Arrays.copyOf(mean(now), dim + Moments.packedSize(dim));
        System.arraycopy(Moments.of(now, dim), 0, sums, dim, Moments.packedSize(dim));
        Map<String, Tensor> after = new LinkedHashMap<>();
        after.put(OWN, Tensor.vector(Rows.joined(now)));
        after.put(Moments.OWN_NUMBER, Tensor.vector(new float[] {number + 1}));
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
        float[] mean = job.told.vector(Moments.MEAN, dim);
        float[] moment = job.told.vector(Moments.MOMENT, Moments.packedSize(dim));
        float[] earlier = job.told.vector(EARLIER, job.part.size);
        float[][] own = own(faces.state, number, dim);
        int others = job.told.number(Moments.DEVICES) - (own == null ? 0 : 1);
        if (mean == null || moment == null || earlier == null || others < 1) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "the server told of sums of moments and not what they are, or of nobody else's; leave the round, tell the"
                            + " operator");
        }
        float[] ownMean = own == null ? new float[dim] : mean(own);
        float[] ownMoment = own == null ? new float[moment.length] : Moments.of(own, dim);
        double[] mu = new double[dim];
        for (int d = 0; d < dim; d++) {
            mu[d] = ((double) mean[d] - ownMean[d]) / others;
        }
        double[] rest = new double[moment.length];
        for (int i = 0; i < rest.length; i++) {
            rest[i] = (double) moment[i] - ownMoment[i];
        }
        double[][] covariance = Moments.covariance(rest, others, mu);
        if (own == null || own.length != faces.numPeople()) {
            own = Rows.means(job.embedEarlier(earlier, faces.crops), faces.labels, faces.numPeople());
        }
        return new Opened(own, others, mu, covariance);
    }

    /** Returns the device's class embeddings that are in a sum, by its number; null if none are. */
    private static float[][] own(Map<String, Tensor> state, int number, int dim) {
        Tensor kept = state.get(OWN);
        Tensor when = state.get(Moments.OWN_NUMBER);
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

    private static float[][] floats(double[][] rows) {
        float[][] converted = new float[rows.length][];
        for (int i = 0; i < rows.length; i++) {
            converted[i] = Moments.floats(rows[i]);
        }
        return converted;
    }
}
