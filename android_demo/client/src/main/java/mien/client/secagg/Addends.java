package mien.client.secagg;

import java.util.Collections;
import java.util.List;

/** What one device has to say, as means over its images: the weight is applied after rounding. */
public final class Addends {
    final int weight;
    final float[] update;
    final double[] metrics;
    /** This device's share of the sum's noise in steps; null where it adds none. */
    final long[] noise;
    /** False where the clip bit must stay 0, because nothing would hide it. */
    final boolean tellsClip;

    /** Runs of the update that have an L2 clip of their own. */
    final List<Block> blocks;

    /** A run of the update's elements, and its clip. */
    public static final class Block {
        final int start;
        final int end;
        /** The largest L2 norm of the run; longer ones are cut to it. */
        public final double clip;

        /** Holds a run from {@code start} to before {@code end}, and its clip. */
        public Block(int start, int end, double clip) {
            this.start = start;
            this.end = end;
            this.clip = clip;
        }
    }

    /** Holds what a device adds: its weight, the weighted update, the weighted metrics. */
    public Addends(int weight, float[] update, double[] metrics) {
        this(weight, update, metrics, Collections.<Block>emptyList());
    }

    /** Holds the same, with runs of the update that have an L2 clip of their own. */
    public Addends(int weight, float[] update, double[] metrics, List<Block> blocks) {
        this(weight, update, metrics, null, true, blocks);
    }

    Addends(
            int weight, float[] update, double[] metrics, long[] noise, boolean tellsClip, List<Block> blocks) {
        this.blocks = blocks;
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
