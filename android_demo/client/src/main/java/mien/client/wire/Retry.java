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
    private int failures;
    private long sinceMs;

    /** Begins without a failure, and gives up after so long without progress. */
    public Retry(Clock clock, Random random, long giveUpMs) {
        this.clock = clock;
        this.random = random;
        this.giveUpMs = giveUpMs;
        progress();
    }

    /** Returns what a call answers, repeating it while its error says that this can help. */
    public static <T> T call(Clock clock, Random random, long giveUpMs, String peer, Call<T> call) {
        Retry retry = new Retry(clock, random, giveUpMs);
        while (true) {
            try {
                return call.run();
            } catch (StatusRuntimeException error) {
                retry.pause(Statuses.meaning(error, peer));
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
        long ceiling = Math.min(LONGEST_MS, FIRST_MS << Math.min(failures, 16));
        long pauseMs = Math.max((long) (random.nextDouble() * ceiling), error.retryAfterMs());
        if (!error.code().isTransient() || error.code() == ErrorCode.CANCELLED || clock.monotonicMs() + pauseMs - sinceMs > giveUpMs) {
            throw error;
        }
        failures++;
        clock.sleep(pauseMs);
    }
}
