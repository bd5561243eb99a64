package mien.client.secagg;

import java.math.BigDecimal;
import java.math.BigInteger;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * How real numbers become ring elements: clip, round at random without bias, never wrap.
 *
 * <p>q = floor(x 2^f + r 2^-32) with r a uniform u32, in IEEE double, so that all languages agree bit for bit.
 */
public final class NumberFormat {
    static final int MAX_FRAC_BITS = 48;
    static final int MAX_WEIGHT = 65535;

    public final int ringBits;
    public final int fracBits;
    public final double l2Clip;
    public final double coordinateClip;
    public final int maxWeight;
    public final double metricBound;
    public final int metricFracBits;

    NumberFormat(
            int ringBits,
            int fracBits,
            double l2Clip,
            double coordinateClip,
            int maxWeight,
            double metricBound,
            int metricFracBits) {
        this.ringBits = ringBits;
        this.fracBits = fracBits;
        this.l2Clip = (float) l2Clip;
        this.coordinateClip = (float) coordinateClip;
        this.maxWeight = maxWeight;
        this.metricBound = (float) metricBound;
        this.metricFracBits = metricFracBits;
        boolean clipsFit = isPositive(this.l2Clip) && isPositive(this.coordinateClip) && isPositive(this.metricBound);
        if ((ringBits != 24 && ringBits != 32) || !isFraction(fracBits) || !isFraction(metricFracBits) || !clipsFit) {
            throw impossible("a ring has 24 or 32 bits, fractions 0 to 48, and clips are positive float32 numbers");
        }
        if (maxWeight < 1 || maxWeight > MAX_WEIGHT) {
            throw impossible("max_weight is " + maxWeight + ", beyond 1 to " + MAX_WEIGHT);
        }
    }

    private static boolean isPositive(double value) {
        return value > 0 && value < Double.POSITIVE_INFINITY;
    }

    private static boolean isFraction(int bits) {
        return bits >= 0 && bits <= MAX_FRAC_BITS;
    }

    private static MienException impossible(String why) {
        return new MienException(ErrorCode.CONFIG, "the round's numbers cannot be: " + why + "; tell the operator");
    }

    /** Returns the largest absolute value of a rounded element; one step more than the clip, for rounding up. */
    private static BigInteger largest(double bound, int fracBits) {
        return new BigDecimal(Math.ceil(bound * Math.pow(2, fracBits))).toBigInteger().add(BigInteger.ONE);
    }

    /** Returns the largest absolute value of any rounded element. */
    BigInteger largestStep() {
        return largest(coordinateClip, fracBits).max(largest(metricBound, metricFracBits));
    }

    /** Throws CONFIG unless the sum over so many devices stays below half of the ring in every lane. */
    void checkNoWrap(int mostDevices, BigInteger noiseBound) {
        BigInteger limit = BigInteger.ONE.shiftLeft(ringBits - 1);
        BigInteger weights = BigInteger.valueOf((long) mostDevices * maxWeight);
        if (weights.multiply(largestStep()).add(noiseBound).compareTo(limit) >= 0) {
            throw impossible("a sum over " + mostDevices + " devices of weight " + maxWeight + " could wrap");
        }
    }

    static int quantise(double value, double bound, double scale, int random) {
        double clipped = Math.max(-bound, Math.min(bound, value));
        return (int) Math.floor(clipped * scale + (random & 0xffffffffL) * 0x1p-32);
    }

    /** Returns whether both write numbers alike. */
    public boolean isSame(NumberFormat other) {
        return ringBits == other.ringBits
                && fracBits == other.fracBits
                && l2Clip == other.l2Clip
                && coordinateClip == other.coordinateClip
                && maxWeight == other.maxWeight
                && metricBound == other.metricBound
                && metricFracBits == other.metricFracBits;
    }
}
