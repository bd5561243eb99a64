package mien.client.secagg;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;

/** What a round asks of its devices, and the one sequence of bytes that says so; checked so that no sum can wrap. */
public final class RoundConfig {
    static final byte VERSION = 2;
    public static final int BYTES = 220;
    static final int SUITE_ECDSA_P256 = 1;
    private static final int SUITE_ED25519 = 2;
    private static final int MAX_WORDS = 1 << 30;

    public final int suite;
    public final Profile profile;
    public final AttemptId attemptId;
    public final byte[] taskSha256;
    public final byte[] modelSha256;
    public final byte[] layoutSha256;
    public final byte[] statementSha256;
    public final int size;
    public final int numMetrics;
    public final NumberFormat numbers;
    public final int fewest;
    public final int most;
    public final int k;
    public final int t;
    public final int mechanism;
    /** Seconds for keys, shares, upload, consistency and unmask together. */
    public final long totalSeconds;

    final double noiseMultiplier;
    final double targetEpsilon;
    final double delta;
    private final byte[] bytes;

    private RoundConfig(byte[] data) {
        ByteBuffer in = ByteBuffer.wrap(data);
        in.get();
        suite = in.get() & 0xff;
        profile = Profile.of(in.get() & 0xff);
        byte[] taskId = take(in, Canonical.ID_BYTES);
        taskSha256 = take(in, Canonical.HASH_BYTES);
        attemptId = new AttemptId(taskId, in.getLong(), in.getShort() & 0xffff);
        modelSha256 = take(in, Canonical.HASH_BYTES);
        layoutSha256 = take(in, Canonical.HASH_BYTES);
        statementSha256 = take(in, Canonical.HASH_BYTES);
        long elements = in.getInt() & 0xffffffffL;
        numMetrics = in.get() & 0xff;
        int ringBits = in.get() & 0xff;
        int fracBits = in.get() & 0xff;
        int metricFracBits = in.get() & 0xff;
        double l2Clip = in.getFloat();
        double coordinateClip = in.getFloat();
        double metricBound = in.getFloat();
        int maxWeight = in.getShort() & 0xffff;
        numbers =
                new NumberFormat(
                        ringBits, fracBits, l2Clip, coordinateClip, maxWeight, metricBound, metricFracBits);
        fewest = in.getShort() & 0xffff;
        most = in.getShort() & 0xffff;
        k = in.getShort() & 0xffff;
        t = in.getShort() & 0xffff;
        mechanism = in.get() & 0xff;
        noiseMultiplier = in.getFloat();
        targetEpsilon = in.getFloat();
        delta = in.getFloat();
        checkNoise(noiseMultiplier, targetEpsilon, delta);
        totalSeconds = seconds(in);
        require(elements >= 1 && elements + numMetrics + 4 <= MAX_WORDS, "an update of that size does not fit a sum");
        size = (int) elements;
        bytes = data.clone();
        check();
    }

    /**
     * Returns the configuration in canonical bytes; throws VERSION for another version, CORRUPT_DATA for bytes that are
     * not canonical, CONFIG for terms that are not possible, such as a sum that can wrap.
     */
    public static RoundConfig parse(byte[] data) {
        if (data.length == 0 || data[0] != VERSION) {
            throw new MienException(
                    ErrorCode.VERSION, "private sums here are version 2, the coordinator's differ; upgrade the older one");
        }
        if (data.length != BYTES) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "round configuration has " + data.length + " bytes; fetch it again");
        }
        return new RoundConfig(data);
    }

    private void check() {
        if (suite != SUITE_ECDSA_P256 && suite != SUITE_ED25519) {
            throw new MienException(ErrorCode.VERSION, "the round asks for a suite that is unknown here; upgrade");
        }
        require(2 <= fewest && fewest <= most && most <= Graph.MAX_DEVICES, "a sum over so many devices cannot be");
        require((k == 0) == (t == 0), "k and t are given together");
        require(k == 0 || (k <= Graph.MAX_NEIGHBOURS && k / 2 < t && t <= k), "k/2 < t <= k <= 254 is needed");
        require(k % 2 == 0 || k >= most - 1, "k is even where it does not reach everybody");
        require(mechanism == DpSpec.NONE || numbers.maxWeight == 1, "with noise every device weighs 1");
        numbers.checkNoWrap(most, noiseBound());
    }

    /** Returns whether phones themselves add noise that hides one of them; what the coordinator promises to add does not. */
    public boolean isNoisedByPhones() {
        return DpSpec.isNoisedByPhones(mechanism, targetEpsilon);
    }

    /** Noise of whatever kind has positive terms, and none has zeros without a sign: one meaning, one form of bytes. */
    private void checkNoise(double... terms) {
        if (mechanism > DpSpec.SKELLAM) {
            throw new MienException(ErrorCode.VERSION, "the round asks for a mechanism that is unknown here; upgrade");
        }
        for (double term : terms) {
            boolean isPositive = term > 0 && term < Double.POSITIVE_INFINITY;
            boolean isZero = Double.compare(term, 0.0) == 0;
            if (!isPositive && Double.compare(term, -0.0) == 0) {
                throw notCanonical();
            }
            require(mechanism == DpSpec.NONE ? isZero : isPositive, "terms of noise are positive with noise, 0 without");
        }
    }

    private BigInteger noiseBound() {
        if (mechanism != DpSpec.SKELLAM) {
            return BigInteger.ZERO;
        }
        double deviation = noiseMultiplier * numbers.l2Clip * Math.pow(2, numbers.fracBits);
        double bound = Math.ceil(16 * deviation * Math.sqrt(most)) + 64;
        return new BigDecimal(bound).toBigInteger();
    }

    private static long seconds(ByteBuffer in) {
        long total = 0;
        for (int stage = 0; stage < 5; stage++) {
            long seconds = in.getInt() & 0xffffffffL;
            require(seconds > 0, "each deadline is at least 1 second");
            total += seconds;
        }
        return total;
    }

    private static void require(boolean holds, String rule) {
        if (!holds) {
            throw new MienException(ErrorCode.CONFIG, "the round's terms cannot be: " + rule + "; tell the operator");
        }
    }

    private static MienException notCanonical() {
        return new MienException(
                ErrorCode.CORRUPT_DATA, "round configuration is not in its canonical form; fetch it again");
    }

    private static byte[] take(ByteBuffer in, int size) {
        byte[] taken = new byte[size];
        in.get(taken);
        return taken;
    }

    /** Returns H("cfg", canonical bytes): what keys and signatures are bound to. */
    byte[] sha256() {
        return Canonical.hash("cfg", bytes);
    }

    /** Returns the canonical bytes. */
    public byte[] toBytes() {
        return bytes.clone();
    }

    /**
     * Returns the configuration in bytes that were kept of a sum that is over, of this version or of 1: version 2 changed
     * what devices say, not what a configuration holds. Throws as {@link #parse} does.
     */
    public static RoundConfig ofKept(byte[] data) {
        byte[] kept = data.clone();
        if (kept.length > 0 && kept[0] == 1) {
            kept[0] = VERSION;
        }
        return parse(kept);
    }

    /** Returns message 0's configuration. */
    public static RoundConfig ofInvite(byte[] message) {
        MessageReader reader = new MessageReader(message, MessageReader.INVITE);
        return parse(Arrays.copyOfRange(message, 2, 2 + reader.left()));
    }
}
