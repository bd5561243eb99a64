package mien.app;

import android.os.Handler;
import android.os.Looper;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import java.util.function.Supplier;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * Two threads beside the main one, on each of which one thing happens after another: one for what this phone does alone
 * (disk, keys, embedding), one for what asks the network and may wait for minutes. What comes of it is told on the main
 * thread.
 */
public final class Work {
    private final ExecutorService here = thread("mien-here");
    private final ExecutorService network = thread("mien-network");
    private final Handler main = new Handler(Looper.getMainLooper());

    /** Returns an error that nobody foresaw as one that a screen shows: it does not end the app. */
    public static MienException unforeseen(Throwable error) {
        String what = error.getClass().getSimpleName();
        return new MienException(ErrorCode.OTHER, "the app could not go on (" + what + "); try later", error);
    }

    private static ExecutorService thread(String name) {
        return Executors.newSingleThreadExecutor(job -> new Thread(job, name));
    }

    /** Does a job that needs nobody else; then, on the main thread, hands over its result or says how it failed. */
    public <T> void run(Supplier<T> job, Consumer<T> done, Consumer<MienException> failed) {
        run(here, job, done, failed);
    }

    /** The same for what has no result, and of which nobody has to hear where it fails. */
    public void run(Runnable job) {
        Supplier<Boolean> done =
                () -> {
                    job.run();
                    return true;
                };
        run(done, ignored -> {}, error -> {});
    }

    /** The same for a job that asks the network. */
    public <T> void ask(Supplier<T> job, Consumer<T> done, Consumer<MienException> failed) {
        run(network, job, done, failed);
    }

    private <T> void run(
            ExecutorService thread, Supplier<T> job, Consumer<T> done, Consumer<MienException> failed) {
        thread.execute(
                () -> {
                    try {
                        T result = job.get();
                        main.post(() -> done.accept(result));
                    } catch (MienException error) {
                        main.post(() -> failed.accept(error));
                    } catch (RuntimeException | OutOfMemoryError | StackOverflowError error) {
                        main.post(() -> failed.accept(unforeseen(error)));
                    }
                });
    }
}
