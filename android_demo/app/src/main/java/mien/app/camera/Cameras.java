package mien.app.camera;

import android.content.Context;

/** Gives screens their source of pictures: the phone's camera, where a test does not put another in its place. */
public final class Cameras {
    /** Makes a source of pictures. */
    public interface Factory {
        FrameSource open(Context context, FrameSource.Facing facing, int leastPixels);
    }

    private static Factory factory = Camera2FrameSource::new;

    private Cameras() {}

    /** Returns a source with at least {@code leastPixels} on a picture's long side, where the camera has them. */
    public static FrameSource open(Context context, FrameSource.Facing facing, int leastPixels) {
        return factory.open(context, facing, leastPixels);
    }

    /** Puts another source in the camera's place; null puts the camera back. */
    static void replace(Factory other) {
        factory = other == null ? Camera2FrameSource::new : other;
    }
}
