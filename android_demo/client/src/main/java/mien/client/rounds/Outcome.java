package mien.client.rounds;

import mien.client.MienException;
import mien.client.wire.RoundRef;

/** How a step ended. */
public final class Outcome {
    /** No coordinator that means well names a longer pause than a day. */
    public static final long LONGEST_PAUSE_MS = 24 * 60 * 60_000L;

    private static final long LEAST_PAUSE_MS = 200;
    private static final long UNSAID_PAUSE_MS = 60_000;

    /** What became of it. */
    public enum Kind {
        /** The round closed with this device's contribution in its sum. */
        COUNTED,
        /** The round ended without this device's contribution; nothing is lost. */
        NOT_COUNTED,
        /** The device left the round for a reason that somebody should see; nothing is lost. */
        FAILED,
        /** Nothing to do now. */
        WAIT,
        /** The phone may not work now: charging, idle, unmetered. */
        NOT_NOW
    }

    public final Kind kind;
    /** Null for WAIT and NOT_NOW. */
    public final RoundRef round;

    public final String code;
    public final String reason;
    public final long retryAfterMs;
    /** COUNTED: the model that the round made, and how many contributions are in it. */
    public final String modelId;

    public final int numReports;

    private Outcome(
            Kind kind, RoundRef round, String code, String reason, long retryAfterMs, String modelId, int numReports) {
        this.kind = kind;
        this.round = round;
        this.code = code;
        this.reason = reason;
        this.retryAfterMs = retryAfterMs;
        this.modelId = modelId;
        this.numReports = numReports;
    }

    /** {@code peers} says by which rule peers counted towards the owner's floor; empty where the owner has none. */
    static Outcome counted(RoundRef round, String modelId, int numReports, String peers) {
        return new Outcome(Kind.COUNTED, round, "", peers, 0, modelId, numReports);
    }

    static Outcome of(Kind kind, RoundRef round, String code, String reason) {
        return new Outcome(kind, round, code, reason, 0, "", 0);
    }

    /**
     * Returns that the coordinator has no work, and named a pause, which counts as no less than a fifth of a second, so that a
     * phone does not ask without end, and no more than a day; as a minute where it is no number.
     */
    static Outcome noWork(double retryAfterS, String reason) {
        double named = Double.isNaN(retryAfterS) ? UNSAID_PAUSE_MS : 1000 * retryAfterS;
        return wait((long) Math.min(Math.max(LEAST_PAUSE_MS, named), LONGEST_PAUSE_MS), reason);
    }

    static Outcome wait(long retryAfterMs, String reason) {
        return new Outcome(Kind.WAIT, null, "", reason, retryAfterMs, "", 0);
    }

    /** Returns that the phone has enough of what it was asked for, and asks again later. */
    static Outcome wait(long retryAfterMs, MienException why) {
        return new Outcome(Kind.WAIT, null, why.code().code(), why.getMessage(), retryAfterMs, "", 0);
    }

    /** Returns that the phone may not work now: what is missing, or "busy". */
    public static Outcome notNow(String unmet) {
        return new Outcome(Kind.NOT_NOW, null, "", unmet, 0, "", 0);
    }
}
