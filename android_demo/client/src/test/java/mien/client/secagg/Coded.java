package mien.client.secagg;

/** A device's vector before any mask, for tests of what other rooms say in a sum. */
public final class Coded {
    private Coded() {}

    /** Returns the packed vector under a round's terms, bound to and rounded by zeros. */
    public static byte[] of(Addends said, byte[] terms) {
        RoundConfig config = RoundConfig.parse(terms);
        return VectorCodec.pack(VectorCodec.encode(said, config, new byte[32], new WordStream(new byte[32])), 32);
    }

    /** Returns the L2 norm to which a round cuts updates. */
    public static double clip(byte[] terms) {
        return RoundConfig.parse(terms).numbers.l2Clip;
    }

    /** Returns whether a round's numbers are those that a device plans itself. */
    public static boolean isSame(NumberFormat planned, byte[] terms) {
        return RoundConfig.parse(terms).numbers.isSame(planned);
    }
}
