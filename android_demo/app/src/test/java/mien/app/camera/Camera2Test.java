package mien.app.camera;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import android.content.Context;
import android.graphics.ImageFormat;
import android.graphics.SurfaceTexture;
import android.hardware.camera2.CameraCharacteristics;
import android.hardware.camera2.CameraManager;
import android.hardware.camera2.CameraMetadata;
import android.util.Size;
import android.view.TextureView;
import mien.app.ScreenRunner;
import mien.client.vision.Yuv;
import org.junit.Test;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.shadows.ShadowCameraCharacteristics;
import org.robolectric.shadows.ShadowCameraManager;
import org.robolectric.shadows.StreamConfigurationMapBuilder;

/** What becomes of the phone's camera when there is one, when there is none, and when another app takes it. */
public class Camera2Test extends ScreenRunner implements FrameSource.Listener {
    private Boolean hasTorch;
    private FrameSource.Trouble trouble;

    @Override
    public void onOpened(boolean hasTorch) {
        this.hasTorch = hasTorch;
    }

    @Override
    public void onFrame(Yuv picture, int rotationDeg) {}

    @Override
    public void onTrouble(FrameSource.Trouble trouble) {
        this.trouble = trouble;
    }

    private static ShadowCameraManager cameras() {
        return Shadows.shadowOf(RuntimeEnvironment.getApplication().getSystemService(CameraManager.class));
    }

    private static void addCamera(String id, int facing, boolean hasLight) {
        CameraCharacteristics camera = ShadowCameraCharacteristics.newCameraCharacteristics();
        ShadowCameraCharacteristics shadow = Shadows.shadowOf(camera);
        shadow.set(CameraCharacteristics.LENS_FACING, facing);
        shadow.set(CameraCharacteristics.SENSOR_ORIENTATION, facing == CameraMetadata.LENS_FACING_FRONT ? 270 : 90);
        shadow.set(CameraCharacteristics.FLASH_INFO_AVAILABLE, hasLight);
        shadow.set(
                CameraCharacteristics.SCALER_STREAM_CONFIGURATION_MAP,
                StreamConfigurationMapBuilder.newBuilder()
                        .addOutputSize(ImageFormat.YUV_420_888, new Size(640, 480))
                        .addOutputSize(new Size(1280, 960))
                        .build());
        cameras().addCamera(id, camera);
    }

    /** Returns a source whose preview has its surface already: without a screen none comes by itself. */
    private FrameSource started(FrameSource.Facing facing) {
        Context context = RuntimeEnvironment.getApplication();
        FrameSource source = new Camera2FrameSource(context, facing, Faces.LEAST_PIXELS);
        ((TextureView) source.preview().getChildAt(0)).setSurfaceTexture(new SurfaceTexture(false));
        source.start(this);
        return source;
    }

    @Test
    public void aPhoneWithoutACameraSaysSo() {
        started(FrameSource.Facing.FRONT);
        await("it is told", () -> trouble != null);
        assertEquals(FrameSource.Trouble.NO_CAMERA, trouble);
        assertNull(hasTorch);
    }

    @Test
    public void theCameraThatLooksTheRightWayIsTaken() {
        addCamera("0", CameraMetadata.LENS_FACING_BACK, true);
        addCamera("1", CameraMetadata.LENS_FACING_FRONT, false);
        FrameSource front = started(FrameSource.Facing.FRONT);
        await("it is open", () -> hasTorch != null);
        assertEquals(false, hasTorch);
        front.stop();
        hasTorch = null;
        started(FrameSource.Facing.BACK).setTorch(true);
        await("it is open", () -> hasTorch != null);
        assertEquals(true, hasTorch);
    }

    @Test
    public void thePhonesOnlyCameraIsTakenWhateverWayItLooks() {
        addCamera("0", CameraMetadata.LENS_FACING_FRONT, false);
        started(FrameSource.Facing.BACK);
        await("it is open", () -> hasTorch != null);
        assertNull(trouble);
    }

    @Test
    public void anAppThatTakesTheCameraIsToldOf() {
        addCamera("0", CameraMetadata.LENS_FACING_FRONT, false);
        FrameSource source = started(FrameSource.Facing.FRONT);
        await("it is open", () -> hasTorch != null);
        cameras().triggerDisconnect();
        await("it is told", () -> trouble != null);
        assertEquals(FrameSource.Trouble.IN_USE, trouble);
        hasTorch = null;
        source.start(this);
        await("it is open again", () -> hasTorch != null);
    }
}
