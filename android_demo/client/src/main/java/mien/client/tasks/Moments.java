package mien.client.tasks;

import java.util.Collections;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Second moments of class embeddings as they are summed: packed, the upper triangle, off the diagonal times sqrt(2). */
final class Moments {
    static final String MOMENT = "moment";
    static final String NUMBER = "moment_number";
    static final String DEVICES = "moment_devices";
    static final String MEAN = "moment_mean";
    /** In a device's state: the number of the sum that its embeddings are in. */
    static final String OWN_NUMBER = "own_moment_number";

    /** L2 clip of a lane of sums, which is at most 1 long of each device, with room for rounding. */
    private static final double CLIP = 1 + 0x1p-10;

    private static final double SQRT_2 = Math.sqrt(2);

    private Moments() {}

    /**
     * Returns the clip of its own that each lane of a task's sums has: what this device takes out of them is what it made,
     * and has to be what it sent. 0 under differential privacy, where one clip is for all.
     */
    static double clip(TaskSpec task) {
        return task.dp.isOn() ? 0 : CLIP;
    }

    /** Throws CONFIG for a task whose sums would be seen by somebody whom it does not name, or that nobody would use. */
    static void check(TaskSpec task) {
        Methods.require(task.profile != null, task, "plain sums of moments, each of which is a phone's template,");
        Methods.require(task.groups == 1, task, "sums of moments over groups, which tell more of each phone,");
        boolean isSaid = task.reveals.equals(Collections.singleton(Agreement.CLASS_MOMENT));
        Methods.require(
                isSaid || task.reveals.isEmpty() && task.dp.isOn(), task, "sums of moments without saying exactly so");
        Methods.require(task.rounds > 1, task, "a single round, whose moments nobody would use,");
    }

    static int packedSize(int dim) {
        return dim * (dim + 1) / 2;
    }

    /** Returns the mean of w w' over rows at length 1, packed; zeros for no rows. */
    static float[] of(float[][] rows, int dim) {
        double[] packed = new double[packedSize(dim)];
        for (float[] row : rows) {
            double squares = 0;
            for (float value : row) {
                squares += (double) value * value;
            }
            if (!(squares > 0)) {
                throw new MienException(ErrorCode.NON_FINITE, "a class vector has no direction; leave the round");
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

    /** Returns the matrix of a packed one divided by a number, less the product of a mean with itself. */
    static double[][] covariance(double[] packed, double count, double[] mean) {
        int dim = mean.length;
        double[][] covariance = new double[dim][dim];
        int at = 0;
        for (int row = 0; row < dim; row++) {
            for (int column = row; column < dim; column++, at++) {
                double value = packed[at] / (row == column ? 1 : SQRT_2);
                covariance[row][column] = value / count - mean[row] * mean[column];
                covariance[column][row] = covariance[row][column];
            }
        }
        return covariance;
    }

    static float[] floats(double[] values) {
        float[] converted = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            converted[i] = (float) values[i];
        }
        return converted;
    }
}
