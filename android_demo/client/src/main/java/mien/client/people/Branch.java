package mien.client.people;

import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * A linear map of embeddings and its bias, a person's own: fitted by the binary loss of Decoupled Feature Customization,
 * and never to leave the phone.
 *
 * <p>The source is {@code mien/methods/personal_branch.py}, with its usual constants.
 */
final class Branch {
    private static final double SCALE = 30;
    private static final double MARGIN = 0.4;
    private static final double EXPONENT = 3;
    private static final double BALANCE = 0.7;
    private static final double HOLD = 0.003;
    private static final double MOMENTUM = 0.9;
    private static final double LR = 0.5;
    private static final int STEPS = 60;
    private static final double SHORTEST = 1e-6;

    /** Rows of the map, (D, D). */
    final float[][] weight;

    final float[] bias;

    Branch(float[][] weight, float[] bias) {
        this.weight = weight;
        this.bias = bias;
    }

    /** Returns personal embeddings, of length 1, of embeddings of length 1; throws NON_FINITE. */
    float[][] apply(float[][] unit) {
        float[][] personal = new float[unit.length][bias.length];
        for (int i = 0; i < unit.length; i++) {
            double squares = 0;
            for (int row = 0; row < bias.length; row++) {
                double sum = bias[row];
                for (int d = 0; d < bias.length; d++) {
                    sum += (double) weight[row][d] * unit[i][d];
                }
                personal[i][row] = (float) sum;
                squares += sum * sum;
            }
            double length = Math.sqrt(squares);
            if (!(length >= SHORTEST && length <= Float.MAX_VALUE)) {
                throw new MienException(
                        ErrorCode.NON_FINITE, "the personal model gives embeddings that are not usable; personalise again");
            }
            for (int d = 0; d < bias.length; d++) {
                personal[i][d] /= (float) length;
            }
        }
        return personal;
    }

    /**
     * Returns the map after gradient descent from the identity, on people whom {@code labels} number and public faces, which
     * weigh the same together. Throws NON_FINITE where descent diverges.
     */
    static Branch fit(float[][] own, int[] labels, float[][] everybodyElse) {
        int dim = own[0].length;
        int numPeople = Arrays.stream(labels).max().getAsInt() + 1;
        float[][] all = Arrays.copyOf(own, own.length + everybodyElse.length);
        System.arraycopy(everybodyElse, 0, all, own.length, everybodyElse.length);
        double[] values = new double[dim * dim + dim + numPeople * dim + numPeople];
        Places at = new Places(dim, numPeople);
        int[] counts = new int[numPeople];
        for (int label : labels) {
            counts[label]++;
        }
        for (int d = 0; d < dim; d++) {
            values[d * (dim + 1)] = 1;
            for (int i = 0; i < own.length; i++) {
                values[at.omega + labels[i] * dim + d] += (double) own[i][d] / counts[labels[i]];
            }
        }
        double[] anchor = values.clone();
        double[] velocity = new double[values.length];
        for (int step = 0; step < STEPS; step++) {
            double[] gradient = gradient(all, labels, values, at);
            for (int i = 0; i < values.length; i++) {
                double pull = i < at.omega ? HOLD * (values[i] - anchor[i]) : 0;
                velocity[i] = MOMENTUM * velocity[i] + gradient[i] + pull;
            }
            for (int i = 0; i < values.length; i++) {
                values[i] -= LR * velocity[i];
            }
        }
        for (double value : values) {
            if (!(Math.abs(value) <= Double.MAX_VALUE)) {
                throw new MienException(ErrorCode.NON_FINITE, "the personal model did not converge; the release serves");
            }
        }
        float[][] weight = new float[dim][dim];
        float[] bias = new float[dim];
        for (int row = 0; row < dim; row++) {
            bias[row] = (float) values[at.bias + row];
            for (int d = 0; d < dim; d++) {
                weight[row][d] = (float) values[row * dim + d];
            }
        }
        return new Branch(weight, bias);
    }

    /** Where what is fitted begins: the map at 0, its bias, the people's vectors, and a number for each of them. */
    private static final class Places {
        final int dim;
        final int numPeople;
        final int bias;
        final int omega;
        final int omegaBias;

        Places(int dim, int numPeople) {
            this.dim = dim;
            this.numPeople = numPeople;
            bias = dim * dim;
            omega = bias + dim;
            omegaBias = omega + numPeople * dim;
        }
    }

    /** Returns the gradient of the binary loss; pictures beyond the labels are of public people. */
    private static double[] gradient(float[][] all, int[] labels, double[] values, Places at) {
        double[] gradient = new double[values.length];
        double[][] v = new double[at.numPeople][];
        double[] lengths = new double[at.numPeople];
        double[][] towards = new double[at.numPeople][at.dim];
        for (int k = 0; k < at.numPeople; k++) {
            v[k] = Arrays.copyOfRange(values, at.omega + k * at.dim, at.omega + (k + 1) * at.dim);
            lengths[k] = toLength1(v[k]);
        }
        for (int i = 0; i < all.length; i++) {
            double share = i < labels.length ? 0.5 / labels.length : 0.5 / (all.length - labels.length);
            double[] u = new double[at.dim];
            for (int row = 0; row < at.dim; row++) {
                u[row] = values[at.bias + row];
                for (int d = 0; d < at.dim; d++) {
                    u[row] += all[i][d] * values[row * at.dim + d];
                }
            }
            double length = toLength1(u);
            double[] personal = new double[at.dim];
            for (int k = 0; k < at.numPeople; k++) {
                double half = Math.max(0, (dot(u, v[k]) + 1) / 2);
                double g = 2 * Math.pow(half, EXPONENT) - 1;
                double z = i < labels.length && labels[i] == k
                        ? -BALANCE / SCALE * sigmoid(-(SCALE * (g - MARGIN) + values[at.omegaBias + k]))
                        : (1 - BALANCE) / SCALE * sigmoid(SCALE * (g + MARGIN) + values[at.omegaBias + k]);
                z *= share;
                gradient[at.omegaBias + k] += z;
                double cosine = z * SCALE * EXPONENT * Math.pow(half, EXPONENT - 1);
                for (int d = 0; d < at.dim; d++) {
                    personal[d] += cosine * v[k][d];
                    towards[k][d] += cosine * u[d];
                }
            }
            throughLength(personal, u, length);
            for (int row = 0; row < at.dim; row++) {
                gradient[at.bias + row] += personal[row];
                for (int d = 0; d < at.dim; d++) {
                    gradient[row * at.dim + d] += personal[row] * all[i][d];
                }
            }
        }
        for (int k = 0; k < at.numPeople; k++) {
            throughLength(towards[k], v[k], lengths[k]);
            System.arraycopy(towards[k], 0, gradient, at.omega + k * at.dim, at.dim);
        }
        return gradient;
    }

    /** Turns the gradient by a vector at length 1 into that by the vector itself. */
    private static void throughLength(double[] gradient, double[] unit, double length) {
        double along = dot(gradient, unit);
        for (int d = 0; d < gradient.length; d++) {
            gradient[d] = (gradient[d] - along * unit[d]) / length;
        }
    }

    private static double toLength1(double[] vector) {
        double length = Math.sqrt(dot(vector, vector));
        for (int d = 0; d < vector.length; d++) {
            vector[d] /= length;
        }
        return length;
    }

    private static double dot(double[] one, double[] other) {
        double sum = 0;
        for (int d = 0; d < one.length; d++) {
            sum += one[d] * other[d];
        }
        return sum;
    }

    private static double sigmoid(double z) {
        return 0.5 * (1 + Math.tanh(z / 2));
    }
}
