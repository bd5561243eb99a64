package mien.client.secagg;

/** What one device has to say, as means over its images: the weight is applied after rounding. */
public final class Addends {
    final int weight;
    final float[] update;
    final double[] metrics;
    /** This device's share of the sum's noise in steps; null where it adds none. */
    final long[] noise;
    /** False where the clip bit must stay 0, because nothing would hide it. */
    final boolean tellsClip;

    /** Holds what a device adds: its weight, the weighted update, the weighted metrics. */
    public Addends(int weight, float[] update, double[] metrics) {
        this(weight, update, metrics, null, true);
    }

    Addends(int weight, float[] update, double[] metrics, long[] noise, boolean tellsClip) {
        this.weight = weight;
        this.update = update;
        this.metrics = metrics;
        this.noise = noise;
        this.tellsClip = tellsClip;
    }

    @Override
    public String toString() {
        return "Addends(***)";
    }
}
