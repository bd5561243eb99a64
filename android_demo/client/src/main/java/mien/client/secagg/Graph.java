package mien.client.secagg;

import java.math.BigInteger;
import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Who is whose neighbour: complete, or each next to k / 2 on either side of a ring that the seed shuffles. */
final class Graph {
    static final int MAX_NEIGHBOURS = 254;
    static final int MAX_DEVICES = 5000;
    static final double SIGMA = 40.0;
    static final double CORRUPT = 0.1;

    /** How many neighbours a device has (k), and how many of their shares give a secret (t). */
    static final class Hood {
        final int k;
        final int t;

        Hood(int k, int t) {
            this.k = k;
            this.t = t;
        }
    }

    private final int n;
    private final int k;
    private final int[] order;
    private final int[] position;

    Graph(int n, int k, byte[] seed) {
        this.n = n;
        this.k = k;
        order = k == n - 1 ? new int[0] : permutation(seed, n);
        position = new int[order.length];
        for (int place = 0; place < order.length; place++) {
            position[order[place]] = place;
        }
    }

    /** Returns 0 ... n-1 shuffled by a seed's words: Fisher-Yates from the end, words beyond a multiple rejected. */
    static int[] permutation(byte[] seed, int n) {
        int[] order = new int[n];
        for (int i = 0; i < n; i++) {
            order[i] = i;
        }
        WordStream stream = new WordStream(seed);
        for (int last = n - 1; last > 0; last--) {
            long size = last + 1L;
            long limit = (1L << 32) / size * size;
            long word;
            do {
                word = stream.take(1)[0] & 0xffffffffL;
            } while (word >= limit);
            int other = (int) (word % size);
            int swapped = order[last];
            order[last] = order[other];
            order[other] = swapped;
        }
        return order;
    }

    /** Returns the neighbours of a member, ascending, which is the order of their ids. */
    int[] neighbours(int index) {
        int[] found = new int[k];
        int at = 0;
        if (k == n - 1) {
            for (int i = 0; i < n; i++) {
                if (i != index) {
                    found[at++] = i;
                }
            }
            return found;
        }
        for (int step = 1; step <= k / 2; step++) {
            found[at++] = order[Math.floorMod(position[index] - step, n)];
            found[at++] = order[(position[index] + step) % n];
        }
        Arrays.sort(found);
        return found;
    }

    /** Returns x of the share of {@code owner} that {@code holder} has. */
    int shareIndex(int owner, int holder) {
        return Arrays.binarySearch(neighbours(owner), holder) + 1;
    }

    // Which k and t are safe

    static int completeThreshold(Profile profile, int n) {
        return profile == Profile.MALICIOUS_SERVER ? (2 * n + 2) / 3 : (n - 1) / 2 + 1;
    }

    /** Returns k and t of a profile for a roster of n; throws COHORT below 3 devices, CONFIG above 5000. */
    static Hood ownHood(Profile profile, int n) {
        if (n < 3) {
            throw new MienException(
                    ErrorCode.COHORT, n + " devices cannot hide one another; wait until at least 3 take part");
        }
        boolean malicious = profile == Profile.MALICIOUS_SERVER;
        if (n <= (malicious ? 97 : 47)) {
            return new Hood(n - 1, completeThreshold(profile, n));
        }
        if (n <= 1000) {
            return malicious ? new Hood(96, 67) : new Hood(46, 26);
        }
        if (n <= MAX_DEVICES) {
            return malicious ? new Hood(116, 81) : new Hood(52, 30);
        }
        throw new MienException(
                ErrorCode.CONFIG, "a cohort of " + n + " is too large for one sum; plan at most " + MAX_DEVICES);
    }

    /** Returns k and t for a roster of n where the configuration asks for k, t (0, 0: the profile's own). */
    static Hood resolve(Profile profile, int n, int k, int t) {
        if (k == 0) {
            return ownHood(profile, n);
        }
        if (k < n - 1) {
            return new Hood(k, t);
        }
        int threshold = Math.max(t, completeThreshold(profile, n));
        if (n < 3 || threshold > n - 1) {
            throw new MienException(
                    ErrorCode.COHORT,
                    n + " devices cannot give " + threshold + " shares of each secret; nothing was released");
        }
        return new Hood(n - 1, threshold);
    }

    /** Throws CONFIG unless k and t keep a tenth of n devices from learning one device's input but for 2^-40. */
    static void check(Profile profile, int n, Hood hood) {
        Hood own = ownHood(profile, n);
        if (hood.k == own.k && hood.t == own.t) {
            return;
        }
        boolean isComplete = hood.k == n - 1;
        boolean possible = 1 <= hood.t && hood.t <= hood.k && hood.k <= Math.min(n - 1, MAX_NEIGHBOURS);
        if (!possible
                || !(isComplete || hood.k % 2 == 0)
                || 2 * hood.t <= hood.k
                || (isComplete && hood.t < completeThreshold(profile, n))
                || log2Exposure(profile, n, hood) > -SIGMA) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    hood.k + " neighbours and threshold " + hood.t + " do not protect " + n + " devices; leave both at 0");
        }
    }

    /** Returns log2 of a bound on the chance that some device has too many corrupt neighbours. */
    static double log2Exposure(Profile profile, int n, Hood hood) {
        int least = profile == Profile.MALICIOUS_SERVER ? 2 * hood.t - hood.k : hood.t;
        int marked = (int) (CORRUPT * n);
        BigInteger ways = BigInteger.ZERO;
        for (int i = Math.max(least, 0); i <= Math.min(hood.k, marked); i++) {
            ways = ways.add(choose(marked, i).multiply(choose(n - 1 - marked, hood.k - i)));
        }
        if (ways.signum() == 0) {
            return Double.NEGATIVE_INFINITY;
        }
        return Math.log(n) / Math.log(2) + log2(ways) - log2(choose(n - 1, hood.k));
    }

    private static BigInteger choose(int n, int k) {
        if (k < 0 || k > n) {
            return BigInteger.ZERO;
        }
        BigInteger ways = BigInteger.ONE;
        for (int i = 0; i < k; i++) {
            ways = ways.multiply(BigInteger.valueOf(n - i)).divide(BigInteger.valueOf(i + 1L));
        }
        return ways;
    }

    private static double log2(BigInteger value) {
        int shift = Math.max(0, value.bitLength() - 60);
        return Math.log(value.shiftRight(shift).doubleValue()) / Math.log(2) + shift;
    }
}
