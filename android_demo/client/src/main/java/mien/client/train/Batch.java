package mien.client.train;

/** Indices of a batch's crops, which of them are mirrored, and the factor on both learning rates. */
final class Batch {
    final int[] indices;
    final boolean[] mirrored;
    final double rate;

    Batch(int[] indices, boolean[] mirrored, double rate) {
        this.indices = indices;
        this.mirrored = mirrored;
        this.rate = rate;
    }
}
