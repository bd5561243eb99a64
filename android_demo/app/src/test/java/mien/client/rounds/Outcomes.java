package mien.client.rounds;

import java.util.HashMap;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.RoundRef;

/** Outcomes as rounds have them, for tests of what is shown of them. */
public final class Outcomes {
    private Outcomes() {}

    public static Outcome counted(int numReports) {
        return Outcome.counted(new RoundRef("task", 7, 0), "ab", numReports, "");
    }

    public static Outcome enough() {
        return Outcome.wait(60_000, new MienException(ErrorCode.BUDGET_EXCEEDED, "in 1 sum over model ab already"));
    }

    /** Has a phone keep the evidence of a lie. */
    public static void lie(LogFiles files, String why) {
        Map<String, Object> evidence = new HashMap<>();
        evidence.put("why", why);
        evidence.put("statement", "{}");
        files.accuse(evidence);
    }

    public static Outcome refused(String code, String reason) {
        return Outcome.of(Outcome.Kind.FAILED, new RoundRef("task", 6, 0), code, reason);
    }
}
