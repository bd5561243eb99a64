package mien.app;

import android.content.Context;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import mien.app.training.TrainingJob;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Deleting everything that this app has on the phone. */
public final class Deleting {
    private static final long PATIENCE_MS = 25_000;

    private Deleting() {}

    /** What came of it besides. */
    public static final class Done {
        /** Who this phone was in its fleet; empty where it was in none. */
        public final String deviceId;
        /** Whether the coordinator knows that this phone is to be left out. */
        public final boolean told;

        Done(String deviceId, boolean told) {
            this.deviceId = deviceId;
            this.told = told;
        }
    }

    /**
     * Stops training, has the coordinator leave this phone out if it answers soon, and destroys keys, certificate,
     * pictures, models and choices. Slow. Throws where a key or a file withstood: then it may be tried again.
     */
    public static Done everything(Context context) {
        return everything(context, PATIENCE_MS);
    }

    static Done everything(Context context, long patienceMs) {
        Phone phone = Phone.of(context);
        TrainingJob.plan(context, false);
        phone.training.stopAndWait();
        Done done = leave(phone, patienceMs);
        phone.keys().destroy();
        deleteFiles(phone.home());
        phone.choices.forget();
        ((App) context.getApplicationContext()).forget();
        return done;
    }

    /** Leaves the fleet; what is damaged or away, so that nothing can be said to anybody, is deleted all the same. */
    private static Done leave(Phone phone, long patienceMs) {
        String deviceId = "";
        FutureTask<Boolean> leaving = new FutureTask<>(phone.device()::leave);
        try {
            if (!phone.device().hasJoined()) {
                phone.device().wipe();
                return new Done("", true);
            }
            deviceId = phone.device().deviceId();
            Thread thread = new Thread(leaving, "mien-leaving");
            thread.start();
            return new Done(deviceId, told(leaving, thread, patienceMs));
        } catch (MienException error) {
            return new Done(deviceId, false);
        }
    }

    /** Returns whether the coordinator could be told; by then the thread has ended. */
    private static boolean told(FutureTask<Boolean> leaving, Thread thread, long patienceMs) {
        try {
            return leaving.get(patienceMs, TimeUnit.MILLISECONDS);
        } catch (TimeoutException | ExecutionException | InterruptedException error) {
            leaving.cancel(true);
            join(thread);
            return false;
        }
    }

    private static void join(Thread thread) {
        try {
            thread.join(PATIENCE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static void deleteFiles(Path home) {
        try (Stream<Path> inside = Files.walk(home)) {
            List<Path> deepestFirst = inside.sorted(Comparator.reverseOrder()).collect(Collectors.toList());
            for (Path path : deepestFirst) {
                Files.deleteIfExists(path);
            }
        } catch (IOException error) {
            throw new MienException(ErrorCode.DATABASE, "a file cannot be deleted; try again", error);
        }
    }
}
