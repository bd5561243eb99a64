package mien.app.camera;

import mien.client.vision.Yuv;

/** Where pictures come from, one after the other: a camera, or files in a test. */
public interface FrameSource {
    /** Which camera is asked for; a phone without it lends the one it has. */
    enum Facing {
        FRONT,
        BACK
    }

    /** Why no pictures come. */
    enum Trouble {
        /** The phone has no camera, or it was unplugged. */
        NO_CAMERA,
        /** Whoever administers the phone forbids cameras. */
        FORBIDDEN,
        /** The user withdrew the permission. */
        NOT_ALLOWED,
        /** Another app has it. */
        IN_USE,
        /** It was opened and failed. */
        BROKEN
    }

    /** Who looks at the pictures. */
    interface Listener {
        /** Told once, on the main thread: pictures are about to come. */
        void onOpened(boolean hasTorch);

        /**
         * Told on a thread of the source's, and of the next picture only after this has returned. It stands upright
         * turned by {@code rotationDeg}, clockwise: 0, 90, 180 or 270.
         */
        void onFrame(Yuv picture, int rotationDeg);

        /** Told on the main thread: no more pictures come until the source is started again. */
        void onTrouble(Trouble trouble);
    }

    /** Returns what shows the pictures, mirrored where the camera looks at the user; made once. */
    PreviewBox preview();

    /** Takes the camera and begins; does nothing where it has begun. */
    void start(Listener listener);

    /** Lets go of the camera at once; the listener hears nothing any more, but for a frame that it is just looking at. */
    void stop();

    /** Turns the lamp beside the camera on or off, where there is one. */
    void setTorch(boolean isOn);
}
