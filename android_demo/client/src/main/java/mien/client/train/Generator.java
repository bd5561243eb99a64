package mien.client.train;

import java.util.Arrays;
import java.util.Set;
import java.util.TreeSet;

/**
 * numpy's {@code default_rng(seed)}: PCG64 (XSL-RR 128/64) seeded by a SeedSequence, so that a phone in any language sees
 * the same batches in the same order, mirrored alike.
 */
public final class Generator {
    private static final int POOL = 4;
    private static final int INIT_A = 0x43b0d7e5;
    private static final int MULT_A = 0x931e8875;
    private static final int INIT_B = 0x8b51f9dd;
    private static final int MULT_B = 0x58f38ded;
    private static final int MIX_L = 0xca01f9dd;
    private static final int MIX_R = 0x4973f715;
    private static final long FACTOR_HIGH = 0x2360ED051FC65DA4L;
    private static final long FACTOR_LOW = 0x4385DF649FCCF645L;

    // 128-bit state and increment
    private long high;
    private long low;
    private final long incrementHigh;
    private final long incrementLow;
    /** The other half of a word of which 32 bits were drawn. */
    private long spare;

    private boolean hasSpare;

    /** Each of the {@code seeds} is below 2^32. */
    public Generator(long... seeds) {
        long[] words = seedWords(seeds);
        incrementHigh = words[2] << 1 | words[3] >>> 63;
        incrementLow = words[3] << 1 | 1;
        step();
        add(words[0], words[1]);
        step();
    }

    /** Returns what SeedSequence(seeds) makes for PCG64: four words of 64 bits. */
    private static long[] seedWords(long[] seeds) {
        int[] pool = new int[POOL];
        int[] constant = {INIT_A};
        for (int i = 0; i < POOL; i++) {
            pool[i] = hashed(i < seeds.length ? (int) seeds[i] : 0, constant, MULT_A);
        }
        for (int from = 0; from < POOL; from++) {
            for (int to = 0; to < POOL; to++) {
                if (from != to) {
                    int mixed = MIX_L * pool[to] - MIX_R * hashed(pool[from], constant, MULT_A);
                    pool[to] = mixed ^ mixed >>> 16;
                }
            }
        }
        constant[0] = INIT_B;
        long[] words = new long[4];
        for (int i = 0; i < words.length; i++) {
            long lower = hashed(pool[2 * i % POOL], constant, MULT_B) & 0xffffffffL;
            long upper = hashed(pool[(2 * i + 1) % POOL], constant, MULT_B) & 0xffffffffL;
            words[i] = upper << 32 | lower;
        }
        return words;
    }

    private static int hashed(int value, int[] constant, int factor) {
        int hashed = value ^ constant[0];
        constant[0] *= factor;
        hashed *= constant[0];
        return hashed ^ hashed >>> 16;
    }

    private void add(long upper, long lower) {
        long sum = low + lower;
        high += upper + (Long.compareUnsigned(sum, low) < 0 ? 1 : 0);
        low = sum;
    }

    private void step() {
        long upper = multiplyHigh(low, FACTOR_LOW) + high * FACTOR_LOW + low * FACTOR_HIGH;
        low *= FACTOR_LOW;
        high = upper;
        add(incrementHigh, incrementLow);
    }

    /** Returns the upper 64 bits of a product of unsigned numbers. */
    private static long multiplyHigh(long a, long b) {
        long aHigh = a >>> 32;
        long aLow = a & 0xffffffffL;
        long bHigh = b >>> 32;
        long bLow = b & 0xffffffffL;
        long middle = aHigh * bLow + (aLow * bLow >>> 32);
        long other = aLow * bHigh + (middle & 0xffffffffL);
        return aHigh * bHigh + (middle >>> 32) + (other >>> 32);
    }

    private long next64() {
        step();
        return Long.rotateRight(high ^ low, (int) (high >>> 58));
    }

    private long next32() {
        if (hasSpare) {
            hasSpare = false;
            return spare;
        }
        long word = next64();
        spare = word >>> 32;
        hasSpare = true;
        return word & 0xffffffffL;
    }

    /** Returns a number from 0 to {@code most}, both included: bits enough for it, drawn until they fit. */
    private int upTo(int most) {
        if (most == 0) {
            return 0;
        }
        long mask = (Long.highestOneBit(most) << 1) - 1;
        long drawn;
        do {
            drawn = next32() & mask;
        } while (drawn > most);
        return (int) drawn;
    }

    /** Returns a number from 0 to {@code most}, both included, as Lemire draws it: by a product, for some words anew. */
    public int below(int most) {
        if (most == 0) {
            return 0;
        }
        long count = most + 1L;
        long unfair = (1L << 32) % count;
        long product;
        do {
            product = next32() * count;
        } while ((product & 0xffffffffL) < unfair);
        return (int) (product >>> 32);
    }

    /** Returns {@code size} of the numbers 0 ... n - 1, all different, in ascending order. */
    public int[] choice(int n, int size) {
        if (n > 10_000 && size > n / 50) {
            return fromShuffled(n, size);
        }
        Set<Integer> chosen = new TreeSet<>();
        for (int last = n - size; last < n; last++) {
            int drawn = below(last);
            chosen.add(chosen.contains(drawn) ? last : drawn);
        }
        int[] sorted = new int[size];
        int at = 0;
        for (int each : chosen) {
            sorted[at++] = each;
        }
        return sorted;
    }

    /** Returns a choice as numpy makes it of many numbers: all are there, and the last places are shuffled. */
    private int[] fromShuffled(int n, int size) {
        int[] order = new int[n];
        for (int i = 0; i < n; i++) {
            order[i] = i;
        }
        for (int last = n - 1; last >= Math.max(n - size, 1); last--) {
            int other = below(last);
            int moved = order[last];
            order[last] = order[other];
            order[other] = moved;
        }
        int[] chosen = Arrays.copyOfRange(order, n - size, n);
        Arrays.sort(chosen);
        return chosen;
    }

    /** Returns a number in [0, 1). */
    public double random() {
        return (next64() >>> 11) * 0x1p-53;
    }

    /** Returns a standard normal number, by numpy's ziggurat. */
    public double normal() {
        while (true) {
            long word = next64();
            int layer = (int) (word & 0xff);
            word >>>= 8;
            long magnitude = word >>> 1 & 0x000fffffffffffffL;
            double x = (word & 1) == 0 ? magnitude * Ziggurat.WIDTH[layer] : -(magnitude * Ziggurat.WIDTH[layer]);
            if (magnitude < Ziggurat.INSIDE[layer]) {
                return x;
            }
            if (layer == 0) {
                return tail((magnitude >>> 8 & 1) != 0);
            }
            double between = Ziggurat.HEIGHT[layer - 1] - Ziggurat.HEIGHT[layer];
            if (between * random() + Ziggurat.HEIGHT[layer] < Math.exp(-0.5 * x * x)) {
                return x;
            }
        }
    }

    private double tail(boolean isNegative) {
        double beyond;
        double height;
        do {
            beyond = -Math.log1p(-random()) / Ziggurat.END;
            height = -Math.log1p(-random());
        } while (height + height <= beyond * beyond);
        return isNegative ? -(Ziggurat.END + beyond) : Ziggurat.END + beyond;
    }

    /** Returns {@code values} in random order. */
    public float[] permutation(float[] values) {
        int[] order = permutation(values.length);
        float[] moved = new float[order.length];
        for (int i = 0; i < moved.length; i++) {
            moved[i] = values[order[i]];
        }
        return moved;
    }

    /** Returns {@code values} in random order. */
    public int[] permutation(int[] values) {
        int[] order = values.clone();
        for (int last = order.length - 1; last > 0; last--) {
            int other = upTo(last);
            int moved = order[last];
            order[last] = order[other];
            order[other] = moved;
        }
        return order;
    }

    /** Returns 0 ... n - 1 in random order. */
    public int[] permutation(int n) {
        int[] order = new int[n];
        for (int i = 0; i < n; i++) {
            order[i] = i;
        }
        return permutation(order);
    }
}
