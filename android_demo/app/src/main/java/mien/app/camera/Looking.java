package mien.app.camera;

import android.app.Activity;
import java.util.function.Consumer;
import mien.app.Work;
import mien.client.MienException;
import mien.client.vision.Frame;
import mien.client.vision.Yuv;

/**
 * Offers pictures of the camera to what looks for faces in them, and says on the main thread what came of each: {@code R}.
 * Nothing of a picture is kept, and of what was ended nothing more is said.
 */
public final class Looking<R> {
    /** What looks, on a thread of the camera's. */
    public interface Session<R> {
        R offer(Frame frame);
    }

    private final Activity screen;
    private final Consumer<R> took;
    private final Consumer<MienException> failed;
    private volatile Session<R> session;

    public Looking(Activity screen, Consumer<R> took, Consumer<MienException> failed) {
        this.screen = screen;
        this.took = took;
        this.failed = failed;
    }

    /** Offers pictures to {@code begun} from now on, and to nothing else. */
    public void begin(Session<R> begun) {
        session = begun;
    }

    public void end() {
        session = null;
    }

    /** Offers a picture, as {@link Viewfinder.Looker#onFrame} gets it. */
    public void onFrame(Yuv picture, int rotationDeg) {
        Session<R> current = session;
        if (current == null) {
            return;
        }
        Frame frame = picture.upright(rotationDeg, false);
        try {
            R result = current.offer(frame);
            tell(current, () -> took.accept(result));
        } catch (MienException error) {
            tell(current, () -> failed.accept(error));
        } catch (RuntimeException | OutOfMemoryError | StackOverflowError error) {
            tell(current, () -> failed.accept(Work.unforeseen(error)));
        } finally {
            frame.wipe();
        }
    }

    private void tell(Session<R> of, Runnable what) {
        screen.runOnUiThread(
                () -> {
                    if (of == session) {
                        what.run();
                    }
                });
    }
}
