package mien.client.wire;

import mien.v1.RoundsOuterClass;

/** One attempt of one round of a task. */
public final class RoundRef {
    public final String taskId;
    public final int round;
    public final int attempt;

    /** Names an attempt at a round of a task. */
    public RoundRef(String taskId, int round, int attempt) {
        this.taskId = taskId;
        this.round = round;
        this.attempt = attempt;
    }

    /** Returns the same as a message. */
    public RoundsOuterClass.RoundRef message() {
        return RoundsOuterClass.RoundRef.newBuilder().setTaskId(taskId).setRound(round).setAttempt(attempt).build();
    }

    @Override
    public String toString() {
        return "round " + round + (attempt > 1 ? ", attempt " + attempt : "");
    }
}
