package mien.client.tasks;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.secagg.DpSpec;
import mien.client.secagg.NumberFormat;
import mien.client.secagg.Planner;
import mien.client.secagg.Profile;
import mien.client.train.LocalSpec;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;
import mien.client.wire.RoundRef;
import mien.client.wire.Texts;

/**
 * One training task, as the coordinator sends it: what is trained, how sums are protected, what it would reveal.
 *
 * <p>Every field is known or the task is refused: one that this program does not know may change what leaves the phone.
 * Its hash is over the very bytes, so that all devices of a round hold the same.
 */
public final class TaskSpec {
    private static final double MOST_OVER_SELECTION = 4;

    public final String name;
    public final String method;
    public final int rounds;
    public final List<String> trainable;
    public final LocalSpec local;
    public final byte[] sha256;
    final Fields options;
    /** Whether phones of another role choose among models that are made of the sum. */
    final boolean hasValidators;
    final long seed;
    /** Null: sums of this task are not masked. */
    public final Profile profile;
    public final Set<String> reveals;
    public final int minCohort;
    public final int maxWeight;
    /** What the task promises each device besides. */
    public final DpSpec dp;
    /** The fewest devices whose sum may be opened, and the most that one sum can hold. */
    public final int smallestSum;
    public final int largestSum;
    /** How many devices of a sum at least have labelled faces: an operator's, who can take them out of it again. */
    public final int sources;

    final int groups;
    final double serverLr;
    final double serverMomentum;
    final double l2Clip;
    final double coordinateClip;
    private final int ringBits;

    /** Reads a task as the coordinator sent it; throws CONFIG for one that is not whole or names what is unknown here. */
    public TaskSpec(byte[] json) {
        sha256 = Bytes.sha256(json);
        Fields task = Json.object(json, "the task");
        name = Texts.name(task.text("name"), "the task's name");
        method = task.text("method");
        rounds = task.count("rounds", 1);
        trainable = task.texts("trainable");
        seed = task.number("seed");
        options = task.object("options");
        local = new LocalSpec(task.object("local"));
        // What the server does by itself, and when, is not for a phone to judge.
        for (String ofTheServer : new String[] {"population", "model_id", "gates", "deadlines", "asynchronous"}) {
            task.has(ofTheServer);
        }
        Fields server = task.object("server");
        serverLr = server.real("lr");
        serverMomentum = server.real("momentum");
        hasValidators = task.has("validators");
        if (hasValidators) {
            Fields validators = task.object("validators");
            int most = validators.count("size", 1);
            if (validators.count("min_reports", 1) > most || !isOverSelection(validators.real("over_selection"))) {
                throw refused("asks for another number of validators than there can be");
            }
            validators.end();
        }
        Fields cohort = task.object("cohort");
        int size = cohort.count("size", 1);
        int minReports = cohort.count("min_reports", 1);
        double overSelection = cohort.real("over_selection");
        sources = cohort.has("must_include") ? sources(cohort.object("must_include")) : 0;
        cohort.end();
        Fields privacy = task.object("privacy");
        reveals = new HashSet<>(privacy.texts("reveals"));
        minCohort = privacy.count("min_cohort", 2);
        maxWeight = privacy.count("max_weight", 1);
        String protection = privacy.text("secure_aggregation");
        profile = protection.equals("off") ? null : Profile.of(protection);
        l2Clip = privacy.real("l2_clip");
        coordinateClip = privacy.real("coordinate_clip");
        ringBits = privacy.count("ring_bits", 1);
        groups = privacy.count("groups", 1);
        boolean canBe = isOverSelection(overSelection) && groups <= size && minReports <= size;
        if (!canBe || sources > (groups == 1 ? minReports : 0)) {
            throw refused("asks for another number of phones than there can be");
        }
        int numSelected = (int) Math.ceil(size * overSelection);
        privacy.has("group_mean");
        dp = new DpSpec(privacy.object("dp"));
        privacy.end();
        task.end();
        smallestSum = groups == 1 ? minReports : minCohort;
        largestSum = groups == 1 ? size : (int) (((long) numSelected + groups - 1) / groups);
        if (dp.isOn() && (maxWeight != 1 || trainable.isEmpty())) {
            throw refused("promises differential privacy with weights, or without saying what is trained");
        }
    }

    private static int sources(Fields mustInclude) {
        int labelled = mustInclude.count("labelled", 1);
        mustInclude.end();
        return labelled;
    }

    private static boolean isOverSelection(double share) {
        return share >= 1 && share <= MOST_OVER_SELECTION;
    }

    private MienException refused(String what) {
        return new MienException(
                ErrorCode.CONFIG, "task '" + name + "' " + what + ", which this program cannot; it stays out of it");
    }

    /** Returns the device half of the task's method; throws CONFIG where this program has none. */
    DeviceHalf half() {
        return Methods.of(method);
    }

    /** Returns whether phones change the model; if not, they only embed with it. */
    public boolean trains() {
        return half().trains();
    }

    /** Returns whether phones say how good a model is, by sums of scores, and leave it as it was. */
    public boolean measures() {
        return half().measures();
    }

    /**
     * Throws BUDGET_EXCEEDED for a round that would put this device into more sums than the task promises it. Statistics
     * of all rounds add up, so that is one sum, whether it was opened or not: others may have opened it.
     */
    public void checkPromise(List<Long> pastRounds, long round) {
        if (half().addsUp() && !pastRounds.isEmpty()) {
            throw new MienException(
                    ErrorCode.BUDGET_EXCEEDED,
                    "this phone is counted already, in round " + pastRounds.get(0)
                            + " of this task, whose sums add up; it stays out of this one");
        }
        dp.checkPromise(pastRounds, round);
    }

    /** Returns how this device itself would round the numbers of a sum of the task. */
    NumberFormat numbers() {
        return rounded(l2Clip);
    }

    /** As {@link #numbers()}, of such contributions, and with the clip that a round names where the task lets it. */
    public NumberFormat numbers(ContributionLayout layout, double clip) {
        return rounded(layout.clip(dp.isAdaptive() ? clip : l2Clip));
    }

    private NumberFormat rounded(double clip) {
        NumberFormat plain = Planner.numbers(largestSum, clip, coordinateClip, maxWeight, ringBits);
        return Planner.withRoomForNoise(plain, dp, largestSum);
    }

    /** Returns the seed of a local round: another one for every device and attempt, the same after a restart. */
    public long localSeed(String deviceId, RoundRef ref) {
        String text = deviceId + "/" + ref.taskId + "/" + seed + "/" + ref.round + "/" + ref.attempt;
        byte[] digest = Bytes.sha256(Bytes.utf8(text));
        long word = 0;
        for (int i = 0; i < 4; i++) {
            word = word << 8 | digest[i] & 0xff;
        }
        return word;
    }
}
