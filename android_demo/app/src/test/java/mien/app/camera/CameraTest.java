package mien.app.camera;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import android.app.Activity;
import android.graphics.Bitmap;
import android.graphics.Matrix;
import android.os.Looper;
import android.util.Size;
import android.view.Surface;
import android.view.View;
import mien.client.ErrorCode;
import mien.client.MienException;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.Robolectric;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;

/** What lies between a camera's buffers and a picture that stands upright. */
@RunWith(RobolectricTestRunner.class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = 34)
public class CameraTest {
    private static final Size BUFFER = new Size(1280, 960);

    @Test
    public void picturesAreTurnedByWhatSensorAndScreenDifferBy() {
        int[] displays = {0, 90, 180, 270};
        int[] back = {90, 0, 270, 180};
        int[] front = {270, 0, 90, 180};
        for (int i = 0; i < displays.length; i++) {
            assertEquals(back[i], Turning.ofPictures(90, displays[i], false));
            assertEquals(front[i], Turning.ofPictures(270, displays[i], true));
        }
        assertEquals(270, Turning.degrees(Surface.ROTATION_270));
    }

    @Test
    public void theSmallestSizeThatIsEnoughIsTaken() {
        Size[] sizes = {new Size(4000, 3000), new Size(1920, 1080), new Size(320, 240), new Size(640, 480)};
        assertEquals(new Size(640, 480), Sizes.choose(sizes, 640));
        assertEquals(new Size(4000, 3000), Sizes.choose(sizes, 1280));
        assertEquals(new Size(320, 240), Sizes.choose(new Size[] {new Size(160, 120), new Size(320, 240)}, 640));
        assertEquals(new Size(1280, 720), Sizes.choose(new Size[] {new Size(640, 360), new Size(1280, 720)}, 1280));
        assertNull(Sizes.choose(new Size[0], 640));
    }

    @Test
    public void anUprightPreviewFillsAViewOfItsAspectAsItIs() {
        float[] corners = mapped(Turning.ofPreview(300, 400, BUFFER, 270, 0), 300, 400);
        assertArrayEquals(new float[] {0, 0, 300, 0, 300, 400, 0, 400}, corners, 0.01f);
    }

    @Test
    public void aPreviewThatLiesAcrossIsTurnedBackAndFillsItsView() {
        // The view's top left corner shows what, upright, is the picture's top right corner: a quarter turn to the left.
        float[] left = mapped(Turning.ofPreview(400, 300, BUFFER, 270, 90), 400, 300);
        assertArrayEquals(new float[] {0, 300, 0, 0, 400, 0, 400, 300}, left, 0.01f);
        float[] right = mapped(Turning.ofPreview(400, 300, BUFFER, 270, 270), 400, 300);
        assertArrayEquals(new float[] {400, 0, 400, 300, 0, 300, 0, 0}, right, 0.01f);
    }

    private static float[] mapped(Matrix matrix, int width, int height) {
        float[] corners = {0, 0, width, 0, width, height, 0, height};
        matrix.mapPoints(corners);
        return corners;
    }

    @Test
    public void aPreviewLeavesNothingOfItsPlaceUncovered() {
        PreviewBox box = new PreviewBox(RuntimeEnvironment.getApplication());
        View picture = new View(RuntimeEnvironment.getApplication());
        View guide = new View(RuntimeEnvironment.getApplication());
        box.addView(picture);
        box.addView(guide);
        box.setAspect(new Size(480, 640));
        measure(box, 600, 400);
        assertEquals(new Size(600, 800), new Size(picture.getMeasuredWidth(), picture.getMeasuredHeight()));
        assertEquals(new Size(600, 400), new Size(guide.getMeasuredWidth(), guide.getMeasuredHeight()));
        measure(box, 300, 900);
        box.layout(0, 0, 300, 900);
        assertEquals("its middle stays in the middle", -188, picture.getLeft(), 1);
        assertEquals(new Size(675, 900), new Size(picture.getWidth(), picture.getHeight()));
    }

    private static void measure(View view, int width, int height) {
        view.measure(
                View.MeasureSpec.makeMeasureSpec(width, View.MeasureSpec.EXACTLY),
                View.MeasureSpec.makeMeasureSpec(height, View.MeasureSpec.EXACTLY));
    }

    @Test
    public void whatNobodyForesawBeforeTheCameraEndsNoApp() {
        Activity screen = Robolectric.buildActivity(Activity.class).setup().get();
        MienException[] told = new MienException[1];
        Looking<String> looking = new Looking<>(screen, took -> {}, error -> told[0] = error);
        looking.begin(
                frame -> {
                    throw new OutOfMemoryError("no room for the detector");
                });
        looking.onFrame(Pictures.yuv(Bitmap.createBitmap(64, 64, Bitmap.Config.ARGB_8888), 0), 0);
        Shadows.shadowOf(Looper.getMainLooper()).idle();
        assertEquals(ErrorCode.OTHER, told[0].code());
    }
}
