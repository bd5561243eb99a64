package mien.client.rounds;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.secagg.AttemptId;
import mien.client.secagg.AttemptLog;
import mien.client.secagg.RoundConfig;
import mien.client.store.Vault;
import mien.client.wire.Bytes;
import mien.client.wire.RoundRef;

/**
 * What a device remembers of private sums, on stable storage before it acts: which attempt of each task it began last,
 * how far that went, and every sum that it is or may be in. Removing people does not undo what left the device. In memory
 * alone it holds the keys of an attempt in whose midst the network or a key store went out of reach.
 */
public final class Attempts {
    private static final String BEGUN = "begun-";
    private static final String SUM = "sum-";
    private static final byte AT_BEGIN = 0;
    private static final byte AT_MASKED = 1;
    private static final byte AT_UNMASKED = 2;

    private final Vault vault;
    private MaskedPart held;

    /** Keeps the log of sums in a vault of its own. */
    public Attempts(Vault vault) {
        this.vault = vault;
    }

    /**
     * Returns the log of one round, which asks {@code budget} before it begins an attempt and before its vector goes out:
     * other tasks' attempts may have gone further in between. {@code pictures} and {@code population} are noted.
     */
    AttemptLog under(Budget budget, String population, byte[] pictures, Clock clock) {
        return new AttemptLog() {
            @Override
            public void begin(RoundConfig config) {
                synchronized (Attempts.this) {
                    AttemptId attempt = config.attemptId;
                    if (hasBegun(attempt)) {
                        throw new MienException(ErrorCode.REPLAY, attempt + " is not new here; check in again");
                    }
                    budget.check(now(config), sums(null));
                    vault.put(BEGUN + attempt.task(), record(AT_BEGIN, config.toBytes()));
                }
            }

            @Override
            public void recordMasked(AttemptId attempt) {
                synchronized (Attempts.this) {
                    OwnSum coming = now(reached(attempt, AT_MASKED));
                    budget.check(coming, sums(null));
                    advance(coming.terms, AT_MASKED);
                    vault.put(name(attempt), record(AT_MASKED, coming.toBytes()));
                }
            }

            @Override
            public void recordUnmasked(AttemptId attempt) {
                synchronized (Attempts.this) {
                    RoundConfig config = reached(attempt, AT_UNMASKED);
                    OwnSum sum = sum(name(attempt));
                    vault.put(name(attempt), record(AT_MASKED, sum.released().toBytes()));
                    advance(config, AT_UNMASKED);
                }
            }

            private OwnSum now(RoundConfig config) {
                return OwnSum.of(config, pictures, clock.unixMs() / 1000, population);
            }
        };
    }

    /** Holds the keys of an attempt for the next call, in place of those of another one. */
    synchronized void hold(MaskedPart part) {
        letGo();
        held = part;
    }

    /** Returns whether keys are held of an attempt. */
    synchronized boolean holds(RoundRef ref) {
        return held != null && held.isOf(ref);
    }

    /** Hands over the keys that are held of an attempt; null where there are none. */
    synchronized MaskedPart takeHeld(RoundRef ref) {
        MaskedPart found = holds(ref) ? held : null;
        if (found != null) {
            held = null;
        }
        return found;
    }

    /** Destroys the keys that are held, with what was to be sent under them. */
    public synchronized void letGo() {
        if (held != null) {
            held.forget();
        }
        held = null;
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

    /** Remembers that an attempt's round closed with this device in the sum: others opened it, and no attempt follows. */
    synchronized void recordClosed(AttemptId attempt) {
        if (vault.has(name(attempt))) {
            OwnSum sum = sum(name(attempt));
            if (!sum.isReleased) {
                vault.put(name(attempt), record(AT_MASKED, sum.released().toBytes()));
            }
        }
    }

    /** Returns how many sums this device is or may be in, also where what is noted of one is damaged. */
    public synchronized int numSums() {
        return vault.names(SUM).size();
    }

    /**
     * Returns how many sums of a population (null: of any) without noise of the phones' own may have been opened in the
     * last 24 hours; what is damaged counts as one.
     */
    public synchronized int numSumsToday(String population, long nowUnixS) {
        List<OwnSum> sums = new ArrayList<>();
        int damaged = 0;
        for (String name : vault.names(SUM)) {
            try {
                sums.add(sum(name));
            } catch (MienException error) {
                if (!error.code().isGone()) {
                    throw error;
                }
                damaged++;
            }
        }
        return damaged + Budget.sumsToday(of(sums, population), nowUnixS);
    }

    /** Returns every sum of a population (null: of any) that this device is or may be in. */
    synchronized List<OwnSum> sums(String population) {
        List<OwnSum> sums = new ArrayList<>();
        for (String name : vault.names(SUM)) {
            sums.add(sum(name));
        }
        return of(sums, population);
    }

    /** Returns those of a population (null: of any). */
    static List<OwnSum> of(List<OwnSum> sums, String population) {
        List<OwnSum> found = new ArrayList<>();
        for (OwnSum sum : sums) {
            if (sum.isOf(population)) {
                found.add(sum);
            }
        }
        return found;
    }

    private OwnSum sum(String name) {
        byte[] record = vault.get(name);
        if (record == null) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the log of private sums was changed; restore the whole home from one copy");
        }
        return OwnSum.ofBytes(Arrays.copyOfRange(record, 1, record.length));
    }

    private static String name(AttemptId attempt) {
        return SUM + attempt.task() + "-" + Long.toHexString(attempt.round) + "-" + attempt.attempt;
    }

    /** Returns the terms of an attempt whose next step is {@code to}; throws REPLAY for any other step. */
    private RoundConfig reached(AttemptId attempt, byte to) {
        byte[] last = vault.get(BEGUN + attempt.task());
        boolean isNext = last != null && last[0] == to - 1;
        AttemptId begun = isNext ? config(last).attemptId : null;
        if (!isNext || begun.round != attempt.round || begun.attempt != attempt.attempt) {
            throw new MienException(
                    ErrorCode.REPLAY, "this device has gone past this step of the attempt; check in again");
        }
        return config(last);
    }

    private void advance(RoundConfig config, byte to) {
        vault.put(BEGUN + config.attemptId.task(), record(to, config.toBytes()));
    }

    private static byte[] record(byte progress, byte[] content) {
        return Bytes.concat(new byte[] {progress}, content);
    }

    private static RoundConfig config(byte[] record) {
        return RoundConfig.ofKept(Arrays.copyOfRange(record, 1, record.length));
    }
}
