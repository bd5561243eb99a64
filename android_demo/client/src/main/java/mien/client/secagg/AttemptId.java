package mien.client.secagg;

import mien.client.wire.Bytes;

/** One attempt of one round of a task; attempts of a task are ordered by round, then attempt. */
public final class AttemptId {
    public final byte[] taskId;
    public final long round;
    public final int attempt;

    /** Names an attempt at a round of a task, whose id has 16 bytes. */
    public AttemptId(byte[] taskId, long round, int attempt) {
        this.taskId = taskId;
        this.round = round;
        this.attempt = attempt;
    }

    /** Returns the task's part of the name, in hex. */
    public String task() {
        return Bytes.hex(taskId);
    }

    /** Returns whether this attempt of a task comes after another one. */
    public boolean isAfter(long otherRound, int otherAttempt) {
        int byRound = Long.compareUnsigned(round, otherRound);
        return byRound > 0 || (byRound == 0 && attempt > otherAttempt);
    }

    @Override
    public String toString() {
        return "round " + Long.toUnsignedString(round) + ", attempt " + attempt;
    }
}
