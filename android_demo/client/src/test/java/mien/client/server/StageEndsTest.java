package mien.client.server;

import static org.junit.Assert.assertTrue;

import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Still;
import mien.v1.RoundsOuterClass.Stage;
import org.junit.Test;

/** No stream keeps a phone for ever, however steadily it drips. */
public class StageEndsTest {
    private static final long MINUTE = 60_000;
    private final Still clock = new Still(5);
    private final StageEnds ends = new StageEnds(clock);

    @Test
    public void aRoundMayUseAllItsDeadlines() {
        for (Stage stage : new Stage[] {Stage.TRAINING, Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.UNMASK}) {
            for (int left = 60; left >= 0; left--) {
                ends.hear(stage, left * MINUTE);
                clock.sleep(MINUTE);
            }
        }
    }

    @Test
    public void theSameEventAgainAndAgainEnds() {
        for (long told : new long[] {MINUTE, 0, -1, Long.MIN_VALUE, Long.MAX_VALUE}) {
            StageEnds each = new StageEnds(clock);
            Raised.by(ErrorCode.LATE, "told " + told, () -> drip(each, told, new Stage[] {Stage.TRAINING}));
        }
    }

    @Test
    public void stagesInTurnEndAsWell() {
        Raised.by(ErrorCode.LATE, "in turn", () -> drip(ends, Long.MAX_VALUE, Stage.values()));
        assertTrue(clock.monotonicMs() < (Stage.values().length + 1) * 8 * 24 * 60 * MINUTE);
    }

    /** Closing has no deadline: what was sent is in the sum all the same. */
    @Test
    public void aPhoneWhosePartCountsAsksAgainLater() {
        for (boolean counts : new boolean[] {false, true}) {
            StageEnds each = new StageEnds(clock);
            Raised.by(
                    counts ? ErrorCode.UNREACHABLE : ErrorCode.LATE,
                    "counts " + counts,
                    () -> {
                        try {
                            drip(each, 0, new Stage[] {Stage.CLOSING});
                        } catch (StageEnds.Overdue error) {
                            throw error.orLater(counts);
                        }
                    });
        }
    }

    private void drip(StageEnds listening, long told, Stage[] stages) {
        for (int at = 0; at < 100_000; at++) {
            listening.hear(stages[at % stages.length], told);
            clock.sleep(20 * MINUTE);
        }
    }
}
