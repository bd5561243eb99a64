package mien.client.rounds;

import static org.junit.Assert.assertEquals;

import org.junit.Test;

/** How long a phone waits that was told to come back. */
public class OutcomeTest {
    @Test
    public void nobodyNamesALongerPauseThanADay() {
        assertEquals(1500, Outcome.noWork(1.5, "no task").retryAfterMs);
        assertEquals(24 * 60 * 60_000, Outcome.LONGEST_PAUSE_MS);
        for (double seconds : new double[] {Outcome.LONGEST_PAUSE_MS, 1e300, Double.POSITIVE_INFINITY}) {
            assertEquals(Outcome.LONGEST_PAUSE_MS, Outcome.noWork(seconds, "no task").retryAfterMs);
        }
    }

    @Test
    public void nobodyHasAPhoneAskWithoutAPause() {
        for (double seconds : new double[] {0, -1, 0.001, Double.NEGATIVE_INFINITY, Double.MIN_VALUE}) {
            assertEquals(200, Outcome.noWork(seconds, "no task").retryAfterMs);
        }
        assertEquals("no number", 60_000, Outcome.noWork(Double.NaN, "no task").retryAfterMs);
    }
}
