package mien.client.wire;

import io.grpc.StatusRuntimeException;
import java.util.Random;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * How a device repeats a call that can succeed later: growing pauses with jitter, so that a fleet that lost its server
 * does not return in step, until there was no progress for {@code giveUpMs}.
 */
public final class Retry {
    /** How long work that nobody waits for goes without progress before it gives up. */
    public static final long PATIENT_MS = 120_000;

    /** The same where somebody waits at a screen, to be told what to do. */
    public static final long AT_A_SCREEN_MS = 8_000;

    private static final long FIRST_MS = 500;
    private static final long LONGEST_MS = 30_000;

    /** A call that may be repeated. */
    public interface Call<T> {
        /** Calls once. */
        T run();
    }

    private final Clock clock;
    private final Random random;
    private final long giveUpMs;
    private final Recovery recovery;
    private int failures;
    private long sinceMs;

    /** What may help at once after a failure. */
    public interface Recovery {
        /** Hears of a failure; returns whether the next try is another one, because of what was done. */
        boolean from(MienException error);
    }

    /** Begins without a failure, and gives up after so long without progress. */
    public Retry(Clock clock, Random random, long giveUpMs) {
        this(clock, random, giveUpMs, error -> false);
    }

    /** Begins without a failure; each is first told to {@code recovery}. */
    public Retry(Clock clock, Random random, long giveUpMs, Recovery recovery) {
        this.recovery = recovery;
        this.clock = clock;
        this.random = random;
        this.giveUpMs = giveUpMs;
        progress();
    }

    /** Returns what a call answers, repeating it while its error says that this can help. */
    public static <T> T call(Clock clock, Random random, long giveUpMs, String peer, Call<T> call) {
        return new Retry(clock, random, giveUpMs).call(peer, call);
    }

    /** Returns what a call answers, repeating it while its error says that this can help. */
    public <T> T call(String peer, Call<T> call) {
        while (true) {
            try {
                return call.run();
            } catch (StatusRuntimeException error) {
                pause(Statuses.meaning(error, peer));
            }
        }
    }

    /** Starts over: something was achieved. */
    public void progress() {
        failures = 0;
        sinceMs = clock.monotonicMs();
    }

    /** Pauses after a failure; throws it instead where repeating cannot help, or has not for too long. */
    public void pause(MienException error) {
        boolean canHelp = recovery.from(error) || error.code().isTransient();
        long ceiling = Math.min(LONGEST_MS, FIRST_MS << Math.min(failures, 16));
        long pauseMs = Math.max((long) (random.nextDouble() * ceiling), error.retryAfterMs());
        if (!canHelp || error.code() == ErrorCode.CANCELLED || clock.monotonicMs() + pauseMs - sinceMs > giveUpMs) {
            throw error;
        }
        failures++;
        clock.sleep(pauseMs);
    }
}
