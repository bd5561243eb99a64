package mien.client.secagg;

import java.math.BigDecimal;
import java.math.BigInteger;
import mien.client.ErrorCode;
import mien.client.MienException;

/** What a device itself makes of a task's numbers, to hold the round's terms against. */
public final class Planner {
    private static final int DEFAULT_MAX_WEIGHT = 64;
    private static final double METRIC_BOUND = 64.0;
    private static final int FEWEST_STEPS = 1 << 8;
    /** The norm of d normal numbers exceeds sqrt(d) + 16 with probability below e^-128. */
    private static final double TAIL = 16;

    private Planner() {}

    /** Returns the finest number format under which a sum over so many devices cannot wrap; {@code maxWeight} 0: ours. */
    public static NumberFormat numbers(
            int mostDevices, double l2Clip, double coordinateClip, int maxWeight, int ringBits) {
        long room = (1L << (ringBits - 1)) - 1;
        int weight = maxWeight;
        if (weight == 0) {
            long wanted = ringBits == 32 ? 1 << 16 : 1 << 13;
            weight = (int) Math.max(1, Math.min(DEFAULT_MAX_WEIGHT, room / (mostDevices * (wanted + 1))));
        }
        long steps = room / ((long) mostDevices * weight) - 1;
        int fracBits = fractionBits(steps, coordinateClip);
        if (steps < FEWEST_STEPS || fracBits < 0) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "a ring of " + ringBits + " bits leaves " + Math.max(steps, 0) + " steps for " + mostDevices
                            + " devices of weight " + weight + "; 256 are needed: tell the operator");
        }
        int metricFracBits = Math.max(0, Math.min(16, fractionBits(steps, METRIC_BOUND)));
        int bits = Math.min(fracBits, NumberFormat.MAX_FRAC_BITS);
        return new NumberFormat(ringBits, bits, l2Clip, coordinateClip, weight, METRIC_BOUND, metricFracBits);
    }

    /**
     * Returns the format with as many fraction bits less as devices' own noise needs not to wrap; metrics, which are zeros,
     * take none. Throws CONFIG where that would round more coarsely than 256 steps on each side.
     */
    public static NumberFormat withRoomForNoise(NumberFormat numbers, DpSpec dp, int mostDevices) {
        if (dp.mechanism != DpSpec.SKELLAM) {
            return numbers;
        }
        BigInteger limit = BigInteger.ONE.shiftLeft(numbers.ringBits - 1);
        for (int fracBits = numbers.fracBits; fracBits >= 0; fracBits--) {
            if (Math.ceil(numbers.coordinateClip * Math.pow(2, fracBits)) + 1 <= FEWEST_STEPS) {
                break;
            }
            NumberFormat fewer =
                    new NumberFormat(
                            numbers.ringBits, fracBits, numbers.l2Clip, numbers.coordinateClip, numbers.maxWeight,
                            numbers.metricBound, 0);
            double deviation = (float) dp.noiseMultiplier * fewer.l2Clip * Math.pow(2, fracBits);
            double most = Math.ceil(TAIL * deviation * Math.sqrt(mostDevices)) + 64;
            if (most > Long.MAX_VALUE) {
                continue;
            }
            BigInteger noise = new BigDecimal(most).toBigInteger();
            BigInteger largest = fewer.largestStep().multiply(BigInteger.valueOf(mostDevices));
            if (largest.add(noise).compareTo(limit) < 0) {
                return fewer;
            }
        }
        throw new MienException(
                ErrorCode.CONFIG, "the task's noise does not fit a ring of " + numbers.ringBits + " bits; tell the operator");
    }

    /** Returns the largest f with bound 2^f &lt;= steps. */
    private static int fractionBits(long steps, double bound) {
        if (steps < 1 || !(bound > 0 && bound < Double.POSITIVE_INFINITY)) {
            return -1;
        }
        int f = Math.getExponent(steps / bound);
        return bound * Math.pow(2, f) <= steps ? f : f - 1;
    }
}
