package mien.client.train;

import mien.client.ErrorCode;
import mien.client.MienException;

/** Class vectors on a device: means of features, rows, targets. */
public final class Rows {
    private Rows() {}

    /** Returns each identity's mean embedding at length 1. */
    public static float[][] means(float[][] embeddings, int[] labels, int numPeople) {
        double[][] sums = new double[numPeople][embeddings[0].length];
        for (int i = 0; i < embeddings.length; i++) {
            for (int d = 0; d < embeddings[i].length; d++) {
                sums[labels[i]][d] += embeddings[i][d];
            }
        }
        float[][] rows = new float[numPeople][embeddings[0].length];
        for (int k = 0; k < numPeople; k++) {
            double squares = 0;
            for (double value : sums[k]) {
                squares += value * value;
            }
            if (!(squares > 0)) {
                throw new MienException(ErrorCode.NON_FINITE, "a class vector has no direction; leave the round");
            }
            for (int d = 0; d < rows[k].length; d++) {
                rows[k][d] = (float) (sums[k][d] / Math.sqrt(squares));
            }
        }
        return rows;
    }

    /** Returns a tensor's rows of a width; one vector is one row. None where it is null or of another width. */
    public static float[][] rows(Tensor tensor, int width) {
        boolean fits =
                tensor != null && tensor.shape.length > 0 && tensor.shape[tensor.shape.length - 1] == width;
        float[][] rows = new float[fits ? tensor.values().length / width : 0][width];
        for (int i = 0; i < rows.length; i++) {
            System.arraycopy(tensor.values(), i * width, rows[i], 0, width);
        }
        return rows;
    }

    /** Returns rows of one length as a tensor of two dimensions. */
    public static Tensor tensor(float[][] rows) {
        return new Tensor(joined(rows), rows.length, rows[0].length);
    }

    /** Returns rows end to end. */
    public static float[] joined(float[][] rows) {
        float[] all = new float[rows.length * rows[0].length];
        for (int i = 0; i < rows.length; i++) {
            System.arraycopy(rows[i], 0, all, i * rows[i].length, rows[i].length);
        }
        return all;
    }

    /** Returns the targets (N, K) of class numbers. */
    public static Tensor oneHot(int[] classes, int numClasses) {
        float[] rows = new float[classes.length * numClasses];
        for (int i = 0; i < classes.length; i++) {
            rows[i * numClasses + classes[i]] = 1;
        }
        return new Tensor(rows, classes.length, numClasses);
    }
}
