package mien.client.secagg;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * Whole numbers of noise, drawn exactly: a device's share of a sum's Skellam noise (Agarwal, Kairouz, Liu 2021).
 *
 * <p>As in Python, and to the bit: an offset from a Poisson law's mode is proposed from blocks of a width, block V with
 * probability 2^-(V+1), and accepted by doubles, or by decimals of as many digits as it takes where these cannot decide.
 */
final class Noise {
    private static final int BLOCK = 1 << 15;
    /** Worked out, not written as a constant: enjarify takes 2^50 for 4. */
    private static final double MAX_MEAN = Math.pow(2, 50);
    private static final double UNIT = 0x1p-53;
    /** Doubles err by less than 2^-44 in an acceptance probability. */
    static final double DOUBT = 0x1p-40;

    private final double mean;
    private final double mode;
    private final long width;
    private final RandomBytes random;
    private final double doubt;

    Noise(double mean, RandomBytes random, double doubt) {
        if (!(mean > 0 && mean <= MAX_MEAN)) {
            throw new MienException(
                    ErrorCode.CONFIG, "the round's noise cannot be drawn: its variance is beyond 0 to 2^51; tell the operator");
        }
        this.mean = mean;
        this.random = random;
        this.doubt = doubt;
        mode = Math.floor(mean);
        width = powerOfTwo(0.6 * Math.sqrt(mean) + 2);
    }

    /**
     * Returns one device's share: any {@code numHonest} shares together have a variance of at least sigma squared. The
     * bytes must be such that nobody can predict them: who can removes the noise.
     */
    static long[] share(int size, double sigma, int numHonest, RandomBytes random) {
        // A few units of the last place upwards, so that rounding never takes from the promised variance.
        double variance = sigma * sigma / numHonest * (1 + 0x1p-50);
        long[] noise = new Noise(variance / 2, random, DOUBT).draw(size);
        long[] less = new Noise(variance / 2, random, DOUBT).draw(size);
        for (int i = 0; i < size; i++) {
            noise[i] -= less[i];
        }
        return noise;
    }

    private static long powerOfTwo(double least) {
        long power = 1;
        while (power < least) {
            power <<= 1;
        }
        return power;
    }

    /** Returns draws of the Poisson law. */
    long[] draw(int size) {
        long[] drawn = new long[size];
        int filled = 0;
        while (filled < size) {
            int num = Math.min(BLOCK, 3 * (size - filled) + 16);
            filled = propose(num, drawn, filled);
        }
        return drawn;
    }

    /** Fills in the accepted ones of {@code num} proposals, in order; returns how far. */
    private int propose(int num, long[] drawn, int from) {
        LongBuffer words = ByteBuffer.wrap(random.take(24 * num)).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
        int[] blocks = new int[num];
        for (int i = 0; i < num; i++) {
            blocks[i] = zeros(words.get(i));
        }
        int filled = from;
        for (int i = 0; i < num; i++) {
            boolean isNegative = words.get(i) < 0;
            long distance = blocks[i] * width + (words.get(num + i) & (width - 1));
            long offset = isNegative ? -distance : distance;
            boolean accepted = isAccepted(blocks[i], offset, words.get(2 * num + i));
            // Zero has one sign. All are decided, also beyond what is wanted: the bytes drawn are then as in Python.
            if (accepted && !(isNegative && distance == 0) && filled < drawn.length) {
                drawn[filled++] = offset + (long) mode;
            }
        }
        return filled;
    }

    /** Returns the number of zeros before the first one among the low 63 bits, going on in new words where none is. */
    private int zeros(long word) {
        long bits = word & Long.MAX_VALUE;
        if (bits != 0) {
            return Long.numberOfTrailingZeros(bits);
        }
        return 63 + zeros(ByteBuffer.wrap(random.take(8)).order(ByteOrder.LITTLE_ENDIAN).getLong());
    }

    private boolean isAccepted(int block, long offset, long word) {
        double probability = Math.exp((block - 1) * Math.log(2) + logWeight(offset));
        double low = (word >>> 11) * UNIT;
        if (low + UNIT <= probability - doubt) {
            return true;
        }
        return low < probability + doubt && isBelow(word, block, offset);
    }

    /** Returns ln of how likely an offset is, over the mode's likelihood. */
    private double logWeight(long offset) {
        double k = offset + mode;
        return k < 0 ? Double.NEGATIVE_INFINITY : deviance(mode) - deviance(k) + stirling(mode) - stirling(k);
    }

    /** Returns k ln(k / mean) + mean - k, to a few units of its last place where it is small. */
    private double deviance(double k) {
        double difference = k - mean;
        double v = difference / (k + mean);
        if (Math.abs(v) >= 0.1) {
            return (k > 0 ? k * Math.log(k / mean) : 0) - difference;
        }
        double power = 2 * k * v;
        double series = 0;
        for (int j = 1; j < 12; j++) {
            power *= v * v;
            series += power / (2 * j + 1);
        }
        return difference * v + series;
    }

    /** Returns ln k! - k ln k + k. */
    private static double stirling(double k) {
        if (k < 16) {
            double factorial = 1;
            for (int i = 2; i <= k; i++) {
                factorial *= i;
            }
            return Math.log(factorial) - (k > 0 ? k * Math.log(k) : 0) + k;
        }
        double r = 1 / (k * k);
        double series = (1.0 / 12 - r * (1.0 / 360 - r * (1.0 / 1260 - r / 1680))) / k;
        return 0.5 * Math.log(2 * Math.PI * k) + series;
    }

    /** Returns whether the uniform number that begins with these 64 bits is below the acceptance probability. */
    private boolean isBelow(long word, int block, long offset) {
        BigInteger prefix = unsigned(word);
        int bits = 64;
        int digits = 60;
        while (true) {
            MathContext context = new MathContext(digits);
            BigDecimal probability =
                    exactWeight(offset, context).multiply(BigDecimal.valueOf(2).pow(block - 1, context), context);
            BigDecimal unit = BigDecimal.valueOf(2).pow(-bits, context);
            BigDecimal low = new BigDecimal(prefix).multiply(unit, context);
            BigDecimal error = BigDecimal.ONE.scaleByPowerOfTen(35 - digits);
            if (low.add(unit).compareTo(probability.subtract(error)) <= 0) {
                return true;
            }
            if (low.compareTo(probability.add(error)) >= 0) {
                return false;
            }
            byte[] more = random.take(8);
            prefix = prefix.shiftLeft(64).or(unsigned(ByteBuffer.wrap(more).order(ByteOrder.LITTLE_ENDIAN).getLong()));
            bits += 64;
            digits += 25;
        }
    }

    private static BigInteger unsigned(long word) {
        return new BigInteger(1, ByteBuffer.allocate(8).putLong(word).array());
    }

    private BigDecimal exactWeight(long offset, MathContext context) {
        BigDecimal exactMean = new BigDecimal(mean);
        BigDecimal weight = BigDecimal.ONE;
        BigDecimal negligible = BigDecimal.ONE.scaleByPowerOfTen(-context.getPrecision());
        if (mode + offset < 0) {
            return BigDecimal.ZERO;
        }
        for (long i = 0; i < Math.abs(offset) && weight.compareTo(negligible) >= 0; i++) {
            BigDecimal factor =
                    offset > 0
                            ? exactMean.divide(BigDecimal.valueOf((long) mode + i + 1), context)
                            : BigDecimal.valueOf((long) mode - i).divide(exactMean, context);
            weight = weight.multiply(factor, context);
        }
        return weight;
    }
}
