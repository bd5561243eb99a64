package mien.app;

import android.content.Context;
import mien.client.MienException;

/**
 * Deleting everything, as the main thread sees it. It outlives the screen that began it, which turns with the phone, and the
 * {@link Phone} that it deletes: what came of it is told to whichever screen is there.
 */
public final class Deletion {
    private boolean isRunning;
    private Deleting.Done done;
    private MienException error;
    private Runnable onChange = () -> {};

    /** Returns the one of this process. */
    public static Deletion of(Context context) {
        return ((App) context.getApplicationContext()).deletion;
    }

    /** Begins, unless it has begun. */
    public void begin(Context context) {
        if (isRunning) {
            return;
        }
        isRunning = true;
        done = null;
        error = null;
        Context app = context.getApplicationContext();
        Phone.of(app).work.run(() -> Deleting.everything(app), came -> end(came, null), failed -> end(null, failed));
        onChange.run();
    }

    private void end(Deleting.Done came, MienException failed) {
        isRunning = false;
        done = came;
        error = failed;
        onChange.run();
    }

    public boolean isRunning() {
        return isRunning;
    }

    /** Returns what came of it; null before its end, where it failed, and once somebody has begun anew on this phone. */
    public Deleting.Done done(Context context) {
        return new Choices(context).welcomed() ? null : done; // no new Phone is needed for that
    }

    /** Returns how it failed; null where it did not. */
    public MienException error() {
        return error;
    }

    /** Has something run whenever anything here changes. */
    public void onChange(Runnable action) {
        onChange = action;
    }
}
