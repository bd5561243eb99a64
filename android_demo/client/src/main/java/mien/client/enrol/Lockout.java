package mien.client.enrol;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Vault;

/**
 * How long a face is not looked at after it failed too often; kept sealed, so that it outlives the program.
 *
 * <p>A failure counts from before faces are compared, so that ending the program in between wins nothing. Time counts only
 * as far as both clocks say that it has passed: one that was set forward, or that began anew, gives nothing; one that was
 * set back begins the wait anew.
 */
public final class Lockout {
    /** Failures in a row that cost nothing. */
    public static final int FREE_FAILURES = 4;
    /** The wait after one more failure; each further one doubles it. */
    public static final long FIRST_WAIT_MS = 30_000;

    public static final long LONGEST_WAIT_MS = 3_600_000;

    private static final String RECORD = "lockout";
    private static final int FORM = 1;
    private static final int MOST = 1_000_000;

    private final Vault vault;
    private final Clock clock;
    private State known;

    /** Failures in a row, the wait that they cost, and what the clocks showed when it began. */
    private static final class State {
        static final State NONE = new State(0, 0, 0, 0);

        final int failures;
        final long waitMs;
        final long sinceUnixMs;
        final long sinceMonotonicMs;

        State(int failures, long waitMs, long sinceUnixMs, long sinceMonotonicMs) {
            this.failures = failures;
            this.waitMs = waitMs;
            this.sinceUnixMs = sinceUnixMs;
            this.sinceMonotonicMs = sinceMonotonicMs;
        }
    }

    /** Keeps its count in a vault; the monotonic clock should count from the phone's start, and through its sleep. */
    public Lockout(Vault vault, Clock clock) {
        this.vault = vault;
        this.clock = clock;
    }

    /** Returns how long to wait before the next comparison, in milliseconds; 0 where there is nothing to wait for. */
    public synchronized long waitMs() {
        State state = known == null ? load() : known;
        if (state.waitMs == 0) {
            return 0;
        }
        long byWall = clock.unixMs() - state.sinceUnixMs;
        long byMonotonic = clock.monotonicMs() - state.sinceMonotonicMs;
        if (byWall < 0 || byMonotonic < 0) {
            store(from(state.failures));
            return state.waitMs;
        }
        return Math.max(0, state.waitMs - Math.min(byWall, byMonotonic));
    }

    /** Returns how many comparisons in a row have failed. */
    public synchronized int failures() {
        return load().failures;
    }

    /** Counts a failure before it happened: call it before faces are compared. Throws RATE_LIMITED during a wait. */
    synchronized void begin() {
        load(); // another one may have counted meanwhile
        long waitMs = waitMs();
        if (waitMs > 0) {
            throw new MienException(
                    ErrorCode.RATE_LIMITED, "too many faces were refused; wait, or use the PIN", waitMs, null);
        }
        store(from(Math.min(MOST, load().failures + 1)));
    }

    /** Takes the last failure back: nothing was compared. */
    synchronized void undo() {
        int failures = Math.max(0, load().failures - 1);
        // What was waited for once is not waited for again.
        store(new State(failures, 0, 0, 0));
    }

    /** Forgets all failures: the face was recognised, or the person showed by other means who they are. */
    public synchronized void clear() {
        vault.remove(RECORD);
        known = State.NONE;
    }

    private State from(int failures) {
        int over = failures - FREE_FAILURES;
        long waitMs = over <= 0 ? 0 : Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS << Math.min(over - 1, 20));
        return new State(failures, waitMs, clock.unixMs(), clock.monotonicMs());
    }

    /** A record that does not open was tampered with, or its key is gone: that costs the longest wait. */
    private State load() {
        try {
            byte[] record = vault.get(RECORD);
            known = record == null ? State.NONE : parse(record);
            return known;
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error;
            }
            State longest = from(MOST);
            store(longest);
            return longest;
        }
    }

    private static State parse(byte[] record) {
        try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(record))) {
            boolean isKnown = in.readByte() == FORM;
            State state = new State(in.readInt(), in.readLong(), in.readLong(), in.readLong());
            if (isKnown && state.failures >= 0 && state.waitMs >= 0 && state.waitMs <= LONGEST_WAIT_MS) {
                return state;
            }
            throw new MienException(ErrorCode.CORRUPT_DATA, "the count of failures is of another form; use the PIN");
        } catch (IOException error) {
            throw new MienException(ErrorCode.CORRUPT_DATA, "the count of failures is cut off; use the PIN", error);
        }
    }

    private void store(State state) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            out.writeByte(FORM);
            out.writeInt(state.failures);
            out.writeLong(state.waitMs);
            out.writeLong(state.sinceUnixMs);
            out.writeLong(state.sinceMonotonicMs);
        } catch (IOException error) {
            throw new IllegalStateException("memory can be written to", error);
        }
        if (vault.isLost()) {
            vault.wipe(); // its key never comes back; nothing but this is sealed by it
        }
        vault.put(RECORD, bytes.toByteArray());
        known = state;
    }
}
