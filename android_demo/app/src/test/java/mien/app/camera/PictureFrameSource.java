package mien.app.camera;

import android.content.Context;
import android.graphics.Bitmap;
import android.os.Looper;
import android.util.Size;
import android.widget.ImageView;
import mien.client.vision.Yuv;
import org.robolectric.Shadows;

/** Stands in the camera's place: shows the pictures that a test gives it, one when it is told to. */
public final class PictureFrameSource implements FrameSource {
    private static final int SENSOR_DEG = 270;

    private final PreviewBox box;
    private final ImageView image;
    private final boolean hasTorch;
    public Listener listener;
    public boolean isTorchOn;

    PictureFrameSource(Context context, boolean hasTorch) {
        this.hasTorch = hasTorch;
        box = new PreviewBox(context);
        image = new ImageView(context);
        image.setScaleType(ImageView.ScaleType.CENTER_CROP);
        box.addView(image);
    }

    /** Puts a source in the camera's place for the screens that are opened from now on; the array holds the newest. */
    public static PictureFrameSource[] install(boolean hasTorch) {
        PictureFrameSource[] newest = new PictureFrameSource[1];
        Cameras.replace((context, facing, least) -> newest[0] = new PictureFrameSource(context, hasTorch));
        return newest;
    }

    public static void uninstall() {
        Cameras.replace(null);
    }

    @Override
    public PreviewBox preview() {
        return box;
    }

    @Override
    public void start(Listener told) {
        if (listener == null) {
            listener = told;
            told.onOpened(hasTorch);
        }
    }

    @Override
    public void stop() {
        listener = null;
    }

    @Override
    public void setTorch(boolean isOn) {
        isTorchOn = isOn;
    }

    /** Delivers a picture on a thread of its own, as a camera does, and waits until all of it has been worked up. */
    public void show(Yuv picture, int rotationDeg, Bitmap seen) throws InterruptedException {
        Listener looks = listener;
        if (looks == null) {
            throw new AssertionError("nobody looks");
        }
        box.setAspect(new Size(seen.getWidth(), seen.getHeight()));
        image.setImageBitmap(seen);
        Thread thread = new Thread(() -> looks.onFrame(picture, rotationDeg), "pictures");
        thread.start();
        thread.join();
        Shadows.shadowOf(Looper.getMainLooper()).idle();
    }

    /** Delivers what a front camera that lies across sees, twice: a hint needs a steady view. */
    public void look(Bitmap upright) throws InterruptedException {
        Yuv picture = Pictures.yuv(upright, SENSOR_DEG);
        for (int times = 0; times < 2 && listener != null; times++) {
            show(picture, SENSOR_DEG, upright);
        }
    }

    public void fail(Trouble trouble) {
        Listener told = listener;
        listener = null;
        told.onTrouble(trouble);
    }
}
