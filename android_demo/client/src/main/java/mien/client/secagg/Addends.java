package mien.client.secagg;

/** What one device has to say, as means over its images: the weight is applied after rounding. */
public final class Addends {
    final int weight;
    final float[] update;
    final double[] metrics;

    public Addends(int weight, float[] update, double[] metrics) {
        this.weight = weight;
        this.update = update;
        this.metrics = metrics;
    }

    @Override
    public String toString() {
        return "Addends(***)";
    }
}
