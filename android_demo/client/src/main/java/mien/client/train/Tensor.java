package mien.client.train;

import java.nio.FloatBuffer;

/** Numbers with a shape, on Java's heap or where an engine takes them without copying. */
public final class Tensor {
    final FloatBuffer numbers;
    public final long[] shape;

    /** Takes values in row-major order as they are, without a copy. */
    public Tensor(float[] values, long... shape) {
        this(FloatBuffer.wrap(values), shape);
    }

    Tensor(FloatBuffer numbers, long... shape) {
        this.numbers = numbers;
        this.shape = shape;
    }

    /** Returns the numbers; those that are not on the heap are copied there. */
    public float[] values() {
        if (numbers.hasArray() && numbers.array().length == numbers.remaining()) {
            return numbers.array();
        }
        float[] copy = new float[numbers.remaining()];
        numbers.duplicate().get(copy);
        return copy;
    }

    static Tensor number(double value) {
        return new Tensor(new float[] {(float) value});
    }

    /** Returns a tensor of one dimension. */
    public static Tensor vector(float[] values) {
        return new Tensor(values, values.length);
    }

    @Override
    public String toString() {
        return "Tensor(***)";
    }
}
