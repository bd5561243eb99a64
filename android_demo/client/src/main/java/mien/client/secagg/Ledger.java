package mien.client.secagg;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * A device's own count of what the noised sums that it is in may tell of it, over all tasks of its population.
 *
 * <p>Renyi accounting as in Python ({@code mien/dp/accountant.py}): Gaussian noise by Mironov 2017, Skellam's by Agarwal,
 * Kairouz, Liu 2021, theorem 3.5, and epsilon by Canonne, Kamath, Steinke 2020, proposition 12.
 */
public final class Ledger {
    /** Terms carry epsilon and delta in float32, and sums of many costs round: neither is a broken promise. */
    private static final double ROUNDING = 1 + 1e-6;

    private static final double OWNERS_DELTA = 1e-6;

    private static final double[] ORDERS = orders();

    private Ledger() {}

    private static double[] orders() {
        List<Double> orders = new ArrayList<>();
        for (int tenths = 1; tenths < 100; tenths++) {
            orders.add(1 + tenths / 10.0);
        }
        for (int order = 11; order < 64; order++) {
            orders.add((double) order);
        }
        for (double order = 128; order <= 1024; order *= 2) {
            orders.add(order);
        }
        double[] all = new double[orders.size()];
        for (int i = 0; i < all.length; i++) {
            all[i] = orders.get(i);
        }
        return all;
    }

    /**
     * Throws BUDGET_EXCEEDED for a sum after which a promise that the population's tasks made would not hold: the smallest
     * epsilon of each delta does, whatever the tasks were called. A sum without noise keeps no promise: after one was made,
     * none is taken part in any more.
     */
    public static void check(RoundConfig coming, List<RoundConfig> earlier) {
        List<RoundConfig> noised = new ArrayList<>();
        for (RoundConfig sum : earlier) {
            if (sum.mechanism != DpSpec.NONE) {
                noised.add(sum);
            }
        }
        List<RoundConfig> promising = new ArrayList<>(noised);
        boolean isNoised = coming.mechanism != DpSpec.NONE;
        if (isNoised) {
            promising.add(coming);
        }
        double[] divergence = divergence(promising);
        Set<List<Double>> promises = new LinkedHashSet<>();
        for (RoundConfig sum : promising) {
            List<Double> promise = new ArrayList<>();
            promise.add(sum.targetEpsilon);
            promise.add(sum.delta);
            promises.add(promise);
        }
        for (List<Double> promise : promises) {
            double told = isNoised ? epsilon(divergence, promise.get(1)) : Double.POSITIVE_INFINITY;
            if (told > promise.get(0) * ROUNDING) {
                throw new MienException(
                        ErrorCode.BUDGET_EXCEEDED,
                        String.format(
                                Locale.ROOT,
                                "the tasks of this phone's population promised epsilon %.4g at delta %.3g over all their"
                                        + " sums, and one more after %d with noise would break it; it stays out of this one",
                                promise.get(0), promise.get(1), noised.size()));
            }
        }
    }

    /**
     * Throws BUDGET_EXCEEDED for a sum after which all sums together would tell more of this device than its owner allows; one
     * without noise always does.
     */
    public static void checkOwner(RoundConfig coming, List<RoundConfig> earlier, double maxEpsilon) {
        List<RoundConfig> all = new ArrayList<>(earlier);
        all.add(coming);
        boolean isNoised = true;
        for (RoundConfig sum : all) {
            isNoised &= sum.mechanism != DpSpec.NONE;
        }
        double told = isNoised ? epsilon(all, OWNERS_DELTA) : Double.POSITIVE_INFINITY;
        if (told > maxEpsilon) {
            String words =
                    Double.isInfinite(told)
                            ? "more than any epsilon bounds"
                            : String.format(Locale.ROOT, "epsilon %.4g at delta %.0e", told, OWNERS_DELTA);
            throw new MienException(
                    ErrorCode.BUDGET_EXCEEDED,
                    "taking part once more would tell " + words + "; the owner's limit is "
                            + String.format(Locale.ROOT, "%.4g", maxEpsilon) + ": raise it, or stay out");
        }
    }

    /** Returns epsilon at {@code delta} of noised sums together; 0 for none. */
    static double epsilon(List<RoundConfig> noised, double delta) {
        return noised.isEmpty() ? 0 : epsilon(divergence(noised), delta);
    }

    private static double epsilon(double[] divergence, double delta) {
        if (!(delta > 0 && delta < 1)) {
            throw new MienException(
                    ErrorCode.CONFIG, "the round promises a delta that is not between 0 and 1; tell the operator");
        }
        double least = Double.POSITIVE_INFINITY;
        for (int i = 0; i < ORDERS.length; i++) {
            double order = ORDERS[i];
            double epsilon = divergence[i] + Math.log1p(-1 / order) - Math.log(delta * order) / (order - 1);
            least = Math.min(least, epsilon);
        }
        return Math.max(0, least);
    }

    /** Returns the Renyi divergence bound of noised sums together, at each order; infinite where none is proved. */
    private static double[] divergence(List<RoundConfig> noised) {
        double[] total = new double[ORDERS.length];
        for (RoundConfig sum : noised) {
            double steps = sum.numbers.l2Clip * Math.pow(2, sum.numbers.fracBits);
            double rounded = steps + Math.sqrt(sum.size);
            double largestStep = Math.ceil(sum.numbers.coordinateClip * Math.pow(2, sum.numbers.fracBits)) + 1;
            double most = Math.sqrt(sum.size) * largestStep;
            double l2 = Math.min(rounded, most);
            // Not the smaller sensitivity of small elements alone: noise never counts for more than was asked.
            double multiplier = sum.noiseMultiplier * Math.min(1, steps / l2);
            double l1 = Math.min(Math.sqrt(sum.size) * l2, l2 * l2);
            double variance = Math.pow(multiplier * l2, 2);
            for (int i = 0; i < ORDERS.length; i++) {
                double order = ORDERS[i];
                total[i] += order / (2 * multiplier * multiplier);
                if (sum.mechanism == DpSpec.SKELLAM) {
                    double near = ((2 * order - 1) * l2 * l2 + 6 * l1) / (4 * variance * variance);
                    double extra = Math.min(near, 3 * l1 / (2 * variance));
                    total[i] += Math.floor(order) == order ? extra : Double.POSITIVE_INFINITY;
                }
            }
        }
        return total;
    }
}
