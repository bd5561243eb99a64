package mien.client.secagg;

import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Fields;

/** The differential privacy that a task promises each device: by whose noise, and in how many sums it is at most. */
public final class DpSpec {
    static final int NONE = 0;
    static final int CENTRAL_GAUSSIAN = 1;
    static final int SKELLAM = 2;
    /** Most that noise of phones' own may promise and still count as noise: above it two sums' difference tells much. */
    private static final double MOST_EPSILON = 16;

    /** As Python has it: beyond these a promise bounds nothing, or nothing that can be reckoned. */
    private static final double MOST_RATE = 1e3;

    private static final double LEAST_DELTA = 1e-30;
    private static final double DELTA_END = 0.1;
    private static final int MOST_TIMES = 100_000;

    /** "none", "central_gaussian" or "skellam". */
    public final String name;

    public final double epsilon;
    public final double delta;
    public final int maxParticipations;
    final int mechanism;
    final double noiseMultiplier;
    final double dishonestShare;
    private final int minSeparation;
    private final double targetQuantile;

    /** Throws CONFIG for a promise that this program does not know, or that rests on what no phone can see. */
    public DpSpec(Fields fields) {
        name = fields.text("mechanism");
        mechanism = mechanism(name);
        noiseMultiplier = fields.real("noise_multiplier");
        epsilon = fields.real("epsilon");
        delta = fields.real("delta");
        maxParticipations = fields.count("max_participations", 0);
        minSeparation = fields.count("min_separation", 0);
        dishonestShare = fields.real("dishonest_share");
        targetQuantile = fields.real("target_quantile");
        double clipLr = fields.real("clip_lr");
        boolean counts = fields.text("accounting").equals("participations");
        fields.end();
        boolean isPossible =
                isRate(noiseMultiplier)
                        && isRate(epsilon)
                        && delta >= LEAST_DELTA
                        && delta < DELTA_END
                        && maxParticipations > 0
                        && maxParticipations <= MOST_TIMES
                        && minSeparation <= MOST_TIMES
                        && clipLr > 0
                        && clipLr <= 10
                        && dishonestShare >= 0
                        && dishonestShare < 1
                        && targetQuantile >= 0
                        && targetQuantile < 1
                        && (targetQuantile == 0 || mechanism == CENTRAL_GAUSSIAN);
        if (isOn() && !(isPossible && counts)) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "the task promises a differential privacy that cannot be, or that rests on what no phone can see; this"
                            + " device stays out of it");
        }
    }

    private static boolean isRate(double value) {
        return value > 0 && value <= MOST_RATE;
    }

    private static int mechanism(String name) {
        switch (name) {
            case "none":
                return NONE;
            case "central_gaussian":
                return CENTRAL_GAUSSIAN;
            case "skellam":
                return SKELLAM;
            default:
                throw new MienException(
                        ErrorCode.CONFIG, "the task names the noise " + name + ", unknown here; upgrade this program");
        }
    }

    /** Returns whether phones themselves add noise that hides one of them; what the coordinator promises to add does not. */
    public boolean isNoisedByPhones() {
        return isNoisedByPhones(mechanism, (float) epsilon);
    }

    static boolean isNoisedByPhones(int mechanism, double epsilon) {
        return mechanism == SKELLAM && epsilon <= MOST_EPSILON;
    }

    /** Returns whether noise is added. */
    public boolean isOn() {
        return mechanism != NONE;
    }

    /** Returns whether the clip follows a quantile of the updates' norms: then a round names its own. */
    public boolean isAdaptive() {
        return targetQuantile > 0;
    }

    /** Throws BUDGET_EXCEEDED for a round that would put this device into more sums than the task promises it. */
    public void checkPromise(List<Long> pastRounds, long round) {
        boolean may = !isOn() || pastRounds.size() < maxParticipations;
        for (long past : pastRounds) {
            may &= !isOn() || Math.abs(round - past) >= minSeparation;
        }
        if (!may) {
            throw new MienException(
                    ErrorCode.BUDGET_EXCEEDED,
                    "this phone is in " + pastRounds.size() + " sums of this task already, which promised it at most "
                            + maxParticipations + ", " + minSeparation + " rounds apart; it stays out of this one");
        }
    }

    /** Throws VIOLATION unless a round's terms keep what the task promises. */
    public void checkTerms(RoundConfig terms) {
        boolean kept =
                terms.mechanism == mechanism
                        && (!isOn()
                                || (terms.numbers.maxWeight == 1
                                        && terms.noiseMultiplier == (float) noiseMultiplier
                                        && terms.targetEpsilon == (float) epsilon
                                        && terms.delta == (float) delta));
        if (!kept) {
            throw new MienException(
                    ErrorCode.VIOLATION,
                    "the round's terms do not keep the differential privacy that its task promises; leave the round, and"
                            + " tell the operator");
        }
    }

    /** Returns how many of the fewest survivors are counted on for noise; throws CONFIG where that is nobody. */
    int honestSurvivors(int fewest, int most) {
        int honest = fewest - (int) Math.floor(dishonestShare * most);
        if (honest < 1) {
            throw new MienException(
                    ErrorCode.CONFIG, "the task leaves nobody of the fewest phones to make noise; tell the operator");
        }
        return honest;
    }

    /** Returns what a device may send: no metrics, no clip bit unless it steers the clip, and its share of the noise. */
    public Addends protect(Addends said, RoundConfig terms, RandomBytes random) {
        if (!isOn()) {
            return said;
        }
        if (said.weight != 1) {
            throw new MienException(
                    ErrorCode.CONFIG, "a weight would tell of the images; under differential privacy it is 1");
        }
        long[] noise = null;
        if (mechanism == SKELLAM) {
            double sigma = terms.noiseMultiplier * terms.numbers.l2Clip * Math.pow(2, terms.numbers.fracBits);
            noise = Noise.share(terms.size, sigma, honestSurvivors(terms.fewest, terms.most), random);
        }
        return new Addends(1, said.update, new double[said.metrics.length], noise, isAdaptive(), said.blocks);
    }
}
