package mien.client.train;

/** The normal density in 256 layers of equal area (Marsaglia and Tsang 2000), as numpy draws from it. */
final class Ziggurat {
    /** Where the lowest layer's tail begins, and each layer's area. */
    static final double END = 3.6541528853610087963519472518;

    private static final double AREA = 0.00492867323397465524494;
    private static final int LAYERS = 256;
    private static final double WORDS = 0x1p52;

    /** A drawn word times a layer's width is a number within its outer edge. */
    static final double[] WIDTH = new double[LAYERS];

    /** Words below this are within the next layer too, and so under the density. */
    static final long[] INSIDE = new long[LAYERS];

    /** The density at each layer's edge. */
    static final double[] HEIGHT = new double[LAYERS];

    static {
        double edge = END;
        double outer = AREA / Math.exp(-0.5 * END * END);
        INSIDE[0] = (long) (END / outer * WORDS);
        WIDTH[0] = outer / WORDS;
        WIDTH[LAYERS - 1] = END / WORDS;
        HEIGHT[0] = 1;
        HEIGHT[LAYERS - 1] = Math.exp(-0.5 * END * END);
        for (int layer = LAYERS - 2; layer > 0; layer--) {
            double inner = Math.sqrt(-2 * Math.log(AREA / edge + Math.exp(-0.5 * edge * edge)));
            INSIDE[layer + 1] = (long) (inner / edge * WORDS);
            edge = inner;
            HEIGHT[layer] = Math.exp(-0.5 * edge * edge);
            WIDTH[layer] = edge / WORDS;
        }
    }

    private Ziggurat() {}
}
