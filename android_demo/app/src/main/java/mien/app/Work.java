package mien.app;

import android.os.Handler;
import android.os.Looper;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import java.util.function.Supplier;
import mien.client.MienException;

/**
 * One thread on which everything slow happens (disk, keys, network, networks of neurons), one thing after another; what
 * comes of it is told on the main thread.
 */
public final class Work {
    private final ExecutorService thread =
            Executors.newSingleThreadExecutor(job -> new Thread(job, "mien-work"));
    private final Handler main = new Handler(Looper.getMainLooper());

    /** Does a job; then, on the main thread, either hands over its result or says how it failed. */
    public <T> void run(Supplier<T> job, Consumer<T> done, Consumer<MienException> failed) {
        thread.execute(
                () -> {
                    try {
                        T result = job.get();
                        main.post(() -> done.accept(result));
                    } catch (MienException error) {
                        main.post(() -> failed.accept(error));
                    }
                });
    }
}
