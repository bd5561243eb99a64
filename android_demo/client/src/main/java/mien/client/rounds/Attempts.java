package mien.client.rounds;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.secagg.AttemptId;
import mien.client.secagg.AttemptLog;
import mien.client.secagg.RoundConfig;
import mien.client.store.Vault;

/**
 * What a device remembers of private sums, on stable storage before it acts: which attempt of each task it began last,
 * how far that went, and every sum that it is or may be in. Removing people does not undo what left the device.
 */
public final class Attempts implements AttemptLog {
    private static final String BEGUN = "begun-";
    private static final String SUM = "sum-";
    private static final byte AT_BEGIN = 0;
    private static final byte AT_MASKED = 1;
    private static final byte AT_UNMASKED = 2;

    private final Vault vault;

    public Attempts(Vault vault) {
        this.vault = vault;
    }

    @Override
    public synchronized void begin(RoundConfig config) {
        AttemptId attempt = config.attemptId;
        if (hasBegun(attempt)) {
            throw new MienException(ErrorCode.REPLAY, attempt + " is not new here; check in again");
        }
        vault.put(BEGUN + attempt.task(), record(AT_BEGIN, config));
    }

    @Override
    public synchronized void recordMasked(AttemptId attempt) {
        RoundConfig config = advance(attempt, AT_MASKED);
        String name = SUM + attempt.task() + "-" + Long.toHexString(attempt.round) + "-" + attempt.attempt;
        vault.put(name, record(AT_MASKED, config));
    }

    @Override
    public synchronized void recordUnmasked(AttemptId attempt) {
        advance(attempt, AT_UNMASKED);
    }

    /** Returns whether an attempt, or a later one of its task, was begun: after a restart its keys are gone. */
    public synchronized boolean hasBegun(AttemptId attempt) {
        byte[] last = vault.get(BEGUN + attempt.task());
        if (last == null) {
            return false;
        }
        AttemptId begun = config(last).attemptId;
        return !attempt.isAfter(begun.round, begun.attempt);
    }

    /** Returns the terms of every sum that this device is or may be in. */
    public synchronized List<RoundConfig> participations() {
        List<RoundConfig> sums = new ArrayList<>();
        for (String name : vault.names(SUM)) {
            sums.add(config(vault.get(name)));
        }
        return sums;
    }

    /** Returns how many sums this device is or may be in, also where what is noted of one is damaged. */
    public synchronized int numSums() {
        return vault.names(SUM).size();
    }

    /** Returns the rounds of a task whose sums this device is or may be in. */
    synchronized List<Long> pastRounds(String task) {
        List<Long> rounds = new ArrayList<>();
        for (String name : vault.names(SUM + task + "-")) {
            rounds.add(config(vault.get(name)).attemptId.round);
        }
        return rounds;
    }

    /** Moves the attempt one step on, once. */
    private RoundConfig advance(AttemptId attempt, byte to) {
        byte[] last = vault.get(BEGUN + attempt.task());
        boolean isNext = last != null && last[0] == to - 1;
        AttemptId begun = isNext ? config(last).attemptId : null;
        if (!isNext || begun.round != attempt.round || begun.attempt != attempt.attempt) {
            throw new MienException(
                    ErrorCode.REPLAY, "this device has gone past this step of the attempt; check in again");
        }
        vault.put(BEGUN + attempt.task(), record(to, config(last)));
        return config(last);
    }

    private static byte[] record(byte progress, RoundConfig config) {
        byte[] terms = config.toBytes();
        byte[] record = new byte[1 + terms.length];
        record[0] = progress;
        System.arraycopy(terms, 0, record, 1, terms.length);
        return record;
    }

    private static RoundConfig config(byte[] record) {
        return RoundConfig.ofKept(Arrays.copyOfRange(record, 1, record.length));
    }
}
