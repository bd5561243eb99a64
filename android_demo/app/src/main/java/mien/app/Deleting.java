package mien.app;

import android.content.Context;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import mien.app.training.TrainingJob;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Deleting everything that this app has on the phone. */
public final class Deleting {
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
     * Stops training, has the coordinator leave this phone out if it answers, and destroys keys, certificate, pictures,
     * models and choices. Slow. Throws where a key or a file withstood: then it may be tried again.
     */
    public static Done everything(Context context) {
        Phone phone = Phone.of(context);
        TrainingJob.plan(context, false);
        phone.training.stopAndWait();
        Done done = leave(phone);
        phone.keys.destroy();
        deleteFiles(phone.home());
        phone.choices.forget();
        ((App) context.getApplicationContext()).forget();
        return done;
    }

    /** Leaves the fleet; what is damaged, so that nothing can be said to anybody, is deleted all the same. */
    private static Done leave(Phone phone) {
        String deviceId = "";
        try {
            if (phone.device.hasJoined()) {
                deviceId = phone.device.identity().deviceId;
                return new Done(deviceId, phone.device.leave());
            }
            phone.device.wipe();
            return new Done("", true);
        } catch (MienException error) {
            return new Done(deviceId, false);
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
