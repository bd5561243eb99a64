package mien.client.rounds;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.secagg.AttemptLog;
import mien.client.secagg.Profile;
import mien.client.secagg.RoundConfig;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.tasks.Agreement;
import mien.client.tasks.TaskSpec;
import mien.client.wire.Bytes;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** What a device remembers of sums outlives it, and keeps it out of those that would tell too much. */
public class AttemptsTest {
    /** What a refusal says, by the word for it. */
    private static final Map<String, String> WHY = new HashMap<>();

    static {
        WHY.put("model", "over model");
        WHY.put("day", "in the last 24 hours");
        WHY.put("epsilon", "over all their sums");
        WHY.put("owner", "the owner's limit is");
        WHY.put("adds up", "is counted already");
        WHY.put("task", "sums of this task already");
    }

    @Rule public final TemporaryFolder folder = new TemporaryFolder();
    private Folder root;
    private Vectors file;
    private long nowUnixS = 1_800_000_000;

    @Before
    public void load() throws Exception {
        root = new Folder(folder.getRoot().toPath());
        file = Vectors.load("golden/client/sums.json");
    }

    private final Clock clock =
            new Clock() {
                @Override
                public long unixMs() {
                    return 1000 * nowUnixS;
                }

                @Override
                public long monotonicMs() {
                    return 0;
                }

                @Override
                public void sleep(long ms) {}
            };

    private static Vault vault(Folder home) {
        return new Vault(home.folder("sums"), new FileKeyProvider(home.folder("keys")), "sums");
    }

    private static Agreement agreed(int perModel, int perDay) {
        return new Agreement(
                4, EnumSet.of(Profile.MALICIOUS_SERVER), Collections.<String>emptySet(), perModel, perDay);
    }

    private TaskSpec task(int number) {
        return new TaskSpec(Bytes.utf8(file.at("tasks").at(number).text()));
    }

    /** Opens the log anew, as after a restart, under a task without noise. */
    private AttemptLog log() {
        Budget budget = new Budget(task(0), agreed(9, 9));
        return open().under(budget, "here", new byte[32], clock);
    }

    private Attempts open() {
        return new Attempts(vault(root));
    }

    private static RoundConfig config(int attempt) throws Exception {
        byte[] bytes = Vectors.load("golden/secagg/primitives.json").at("config").at(0).at("bytes").bytes();
        bytes[3 + 16 + 32 + 8 + 1] = (byte) attempt;
        return RoundConfig.parse(bytes);
    }

    @Test
    public void eachStepOnceAndInOrder() throws Exception {
        RoundConfig config = config(3);
        assertFalse(open().hasBegun(config.attemptId));
        log().begin(config);
        assertTrue(open().hasBegun(config.attemptId));
        assertFalse(open().hasBegun(config(4).attemptId));
        Raised.by(ErrorCode.REPLAY, "begun again", () -> log().begin(config));
        Raised.by(ErrorCode.REPLAY, "shares before the vector", () -> log().recordUnmasked(config.attemptId));
        log().recordMasked(config.attemptId);
        Raised.by(ErrorCode.REPLAY, "a second vector", () -> log().recordMasked(config.attemptId));
        log().recordUnmasked(config.attemptId);
        Raised.by(ErrorCode.REPLAY, "shares twice", () -> log().recordUnmasked(config.attemptId));
        assertEquals(1, open().numSums());
        RoundConfig older = config(2);
        Raised.by(ErrorCode.REPLAY, "an older attempt", () -> log().begin(older));
        log().begin(config(4));
        assertTrue(open().hasBegun(config.attemptId));
    }

    @Test
    public void everyStoryGoesAsInPython() {
        Vectors stories = file.at("stories");
        for (int i = 0; i < stories.size(); i++) {
            Folder home = root.folder("story-" + i);
            Vectors steps = stories.at(i).at("steps");
            for (int j = 0; j < steps.size(); j++) {
                Vectors step = steps.at(j);
                String what = stories.at(i).at("what").text() + ", step " + j;
                nowUnixS = step.at("unix_s").number();
                assertEquals(what, step.at("ends").text(), ended(home, step));
                String population = step.at("population").text();
                assertEquals(
                        what,
                        step.at("sums_today").number(),
                        new Attempts(vault(home)).numSumsToday(population, nowUnixS));
                UsedUp usedUp =
                        UsedUp.of(
                                new Attempts(vault(home)).sums(population),
                                () -> step.at("pictures").bytes(),
                                agreed(step.at("per_model").word(), step.at("per_day").word()),
                                nowUnixS);
                Vectors wanted = step.at("used_up");
                assertEquals(what, wanted.at("models").text(), String.join(" ", usedUp.models));
                assertEquals(what, wanted.at("day").flag(), usedUp.day);
            }
        }
        assertTrue(stories.size() > 10);
    }

    private String ended(Folder home, Vectors step) {
        Agreement limits = agreed(step.at("per_model").word(), step.at("per_day").word());
        double maxEpsilon = step.at("max_epsilon").real();
        Budget budget =
                new Budget(
                        task(step.at("task").word()), maxEpsilon == 0 ? limits : limits.withMaxEpsilon(maxEpsilon));
        Attempts attempts = new Attempts(vault(home));
        AttemptLog log = attempts.under(budget, step.at("population").text(), step.at("pictures").bytes(), clock);
        RoundConfig terms = RoundConfig.parse(file.at("terms").at(step.at("terms").word()).bytes());
        try {
            switch (step.at("do").text()) {
                case "begin":
                    log.begin(terms);
                    break;
                case "mask":
                    log.recordMasked(terms.attemptId);
                    break;
                case "close":
                    attempts.recordClosed(terms.attemptId);
                    break;
                default:
                    log.recordUnmasked(terms.attemptId);
            }
            return "ok";
        } catch (MienException error) {
            if (error.code() == ErrorCode.REPLAY) {
                return "replay";
            }
            assertEquals(error.getMessage(), ErrorCode.BUDGET_EXCEEDED, error.code());
            for (Map.Entry<String, String> each : WHY.entrySet()) {
                if (error.getMessage().contains(each.getValue())) {
                    return each.getKey();
                }
            }
            return error.getMessage();
        }
    }

    @Test
    public void aRoundIsLeftBeforeTrainingWhereItsSumWouldBeOneTooMany() throws Exception {
        RoundConfig terms = config(3);
        byte[] mine = new byte[32];
        Arrays.fill(mine, (byte) 1);
        Budget budget = new Budget(task(0), agreed(1, 9));
        String model = Bytes.hex(terms.modelSha256);
        OwnSum planned = OwnSum.planned(config(9).attemptId, model, task(0).dp, mine, nowUnixS);
        budget.checkLimits(planned, open().sums("here"));
        AttemptLog log = open().under(budget, "here", mine, clock);
        log.begin(terms);
        log.recordMasked(terms.attemptId);
        budget.checkLimits(planned, open().sums("here")); // a later attempt of the same round
        log.recordUnmasked(terms.attemptId);
        Raised.by(
                ErrorCode.BUDGET_EXCEEDED, "a second sum", () -> budget.checkLimits(planned, open().sums("here")));
        OwnSum other = OwnSum.planned(config(9).attemptId, model.replace('0', '1'), task(0).dp, mine, nowUnixS);
        budget.checkLimits(other, open().sums("here"));
        String measures = Vectors.load("golden/client/evaluation.json").at("phones").at(0).at("json").text();
        TaskSpec measuring = new TaskSpec(Bytes.utf8(measures));
        new Budget(measuring, agreed(1, 9)).checkLimits(planned, open().sums("here")); // models are measured again and again
        Raised.by(
                ErrorCode.BUDGET_EXCEEDED, "enough in a day",
                () -> new Budget(measuring, agreed(1, 1)).checkLimits(planned, open().sums("here")));
    }

    @Test
    public void underAnOwnersLimitNoSumWithoutNoiseIsBegun() throws Exception {
        RoundConfig terms = config(3);
        Budget budget = new Budget(task(0), agreed(9, 9).withMaxEpsilon(50));
        AttemptLog log = open().under(budget, "here", new byte[32], clock);
        String told = Raised.by(ErrorCode.BUDGET_EXCEEDED, "without noise", () -> log.begin(terms));
        assertEquals(
                "taking part once more would tell more than any epsilon bounds; the owner's limit is 50.00: raise it, or"
                        + " stay out",
                told);
        assertFalse(open().hasBegun(terms.attemptId));
    }

    /** An earlier version kept the terms alone: such a sum was opened, with whatever pictures, in whatever population. */
    @Test
    public void sumsOfAnEarlierVersionCount() throws Exception {
        RoundConfig terms = config(3);
        String name = "sum-" + terms.attemptId.task() + "-" + Long.toHexString(terms.attemptId.round) + "-3";
        vault(root).put(name, Bytes.concat(new byte[] {1}, terms.toBytes()));
        OwnSum sum = open().sums("anywhere").get(0);
        assertArrayEquals(OwnSum.ANY_PICTURES, sum.pictures);
        assertTrue(sum.isReleased);
        assertNull(sum.population);
        assertEquals(1, open().numSums());
        assertEquals(0, open().numSumsToday("anywhere", nowUnixS));
        byte[] mine = new byte[32];
        Arrays.fill(mine, (byte) 1);
        AttemptLog log = open().under(new Budget(task(0), agreed(1, 9)), "here", mine, clock);
        Raised.by(ErrorCode.BUDGET_EXCEEDED, "a second sum", () -> log.begin(config4()));
        byte[] kept = vault(root).get(name);
        vault(root).put(name, Arrays.copyOf(kept, kept.length + 7));
        Raised.by(ErrorCode.CORRUPT_DATA, "a damaged note", () -> log.begin(config4()));
        assertEquals("also where it is damaged", 1, open().numSumsToday("here", nowUnixS));
    }

    private static RoundConfig config4() {
        try {
            return config(4);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
