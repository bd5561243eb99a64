package mien.app.camera;

import android.graphics.Matrix;
import android.graphics.RectF;
import android.util.Size;
import android.view.Surface;

/** How a camera's pictures, its preview and the screen lie to one another. */
final class Turning {
    private Turning() {}

    /** Returns by how many degrees, clockwise, a picture of a camera must be turned to stand upright on the screen. */
    static int ofPictures(int sensorDeg, int displayDeg, boolean isFront) {
        return (sensorDeg + (isFront ? displayDeg : -displayDeg) + 360) % 360;
    }

    /** Returns a display's turn in degrees, from {@link Surface#ROTATION_0} and its like. */
    static int degrees(int displayRotation) {
        switch (displayRotation) {
            case Surface.ROTATION_90:
                return 90;
            case Surface.ROTATION_180:
                return 180;
            case Surface.ROTATION_270:
                return 270;
            default:
                return 0;
        }
    }

    /** Returns the size of a picture that was turned. */
    static Size turned(Size size, int degrees) {
        return degrees % 180 == 0 ? size : new Size(size.getHeight(), size.getWidth());
    }

    /**
     * Returns what a texture view has to do to a camera's buffer: Android stands it upright for a phone held as it is
     * made to be held, whatever way it is held now, and stretches it over the view.
     */
    static Matrix ofPreview(int viewWidth, int viewHeight, Size buffer, int sensorDeg, int displayDeg) {
        Size upright = turned(buffer, sensorDeg);
        Size shown = turned(upright, displayDeg);
        RectF view = new RectF(0, 0, viewWidth, viewHeight);
        Matrix matrix = new Matrix();
        matrix.setScale(
                upright.getWidth() / view.width(), upright.getHeight() / view.height(), view.centerX(), view.centerY());
        matrix.postRotate(-displayDeg, view.centerX(), view.centerY());
        float scale = Math.max(view.width() / shown.getWidth(), view.height() / shown.getHeight());
        matrix.postScale(scale, scale, view.centerX(), view.centerY());
        return matrix;
    }
}
