package mien.client.rounds;

import mien.client.wire.RoundRef;

/** Outcomes as rounds have them, for tests of what is shown of them. */
public final class Outcomes {
    private Outcomes() {}

    public static Outcome counted(int numReports) {
        return Outcome.counted(new RoundRef("task", 7, 0), "ab", numReports);
    }

    public static Outcome refused(String code, String reason) {
        return Outcome.of(Outcome.Kind.FAILED, new RoundRef("task", 6, 0), code, reason);
    }
}
