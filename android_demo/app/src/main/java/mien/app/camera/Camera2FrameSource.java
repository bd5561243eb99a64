package mien.app.camera;

import android.app.admin.DevicePolicyManager;
import android.content.Context;
import android.graphics.ImageFormat;
import android.graphics.SurfaceTexture;
import android.hardware.camera2.CameraAccessException;
import android.hardware.camera2.CameraCaptureSession;
import android.hardware.camera2.CameraCharacteristics;
import android.hardware.camera2.CameraDevice;
import android.hardware.camera2.CameraManager;
import android.hardware.camera2.CameraMetadata;
import android.hardware.camera2.CaptureRequest;
import android.hardware.camera2.params.OutputConfiguration;
import android.hardware.camera2.params.SessionConfiguration;
import android.hardware.camera2.params.StreamConfigurationMap;
import android.media.Image;
import android.media.ImageReader;
import android.os.Handler;
import android.os.HandlerThread;
import android.os.Looper;
import android.util.Size;
import android.view.Surface;
import android.view.TextureView;
import android.view.WindowManager;
import java.util.Arrays;
import mien.client.MienException;
import mien.client.vision.Yuv;

/**
 * The phone's camera: a preview on the screen, and the newest picture for whoever looks, one at a time.
 *
 * <p>Everything of one opening lives in one {@link Opening}; {@link #stop} ends it, whatever it has come to.
 */
public final class Camera2FrameSource implements FrameSource {
    private static final int PREVIEW_LEAST = 1280;

    private final Context context;
    private final Facing facing;
    private final int least;
    private final PreviewBox box;
    private final TextureView texture;
    private final Handler main = new Handler(Looper.getMainLooper());
    private Opening opening;

    /** A source of pictures with at least {@code least} pixels on their long side, where the camera has them. */
    public Camera2FrameSource(Context context, Facing facing, int least) {
        this.context = context;
        this.facing = facing;
        this.least = least;
        box = new PreviewBox(context);
        texture = new TextureView(context);
        box.addView(texture);
        texture.setSurfaceTextureListener(new Surfaces());
        texture.addOnLayoutChangeListener((view, l, t, r, b, oldL, oldT, oldR, oldB) -> turnPreview());
    }

    @Override
    public PreviewBox preview() {
        return box;
    }

    @Override
    public void start(Listener listener) {
        if (opening == null) {
            opening = new Opening(listener);
            if (texture.isAvailable()) {
                opening.open();
            }
        }
    }

    @Override
    public void stop() {
        if (opening != null) {
            opening.close();
            opening = null;
        }
    }

    @Override
    public void setTorch(boolean isOn) {
        if (opening != null) {
            opening.setTorch(isOn);
        }
    }

    private int displayDeg() {
        return Turning.degrees(context.getSystemService(WindowManager.class).getDefaultDisplay().getRotation());
    }

    private void turnPreview() {
        if (opening != null && opening.previewSize != null && texture.getWidth() > 0) {
            texture.setTransform(
                    Turning.ofPreview(
                            texture.getWidth(),
                            texture.getHeight(),
                            opening.previewSize,
                            opening.sensorDeg,
                            displayDeg()));
        }
    }

    /** The preview's surface comes and goes with the screen. */
    private final class Surfaces implements TextureView.SurfaceTextureListener {
        @Override
        public void onSurfaceTextureAvailable(SurfaceTexture surface, int width, int height) {
            if (opening != null) {
                opening.open();
            }
        }

        @Override
        public void onSurfaceTextureSizeChanged(SurfaceTexture surface, int width, int height) {
            turnPreview();
        }

        @Override
        public boolean onSurfaceTextureDestroyed(SurfaceTexture surface) {
            stop();
            return true;
        }

        @Override
        public void onSurfaceTextureUpdated(SurfaceTexture surface) {}
    }

    /** One time of having the camera, from asking for it to letting go. */
    private final class Opening extends CameraDevice.StateCallback {
        private final Listener listener;
        private final HandlerThread thread = new HandlerThread("camera");
        private Size previewSize;
        private int sensorDeg;
        private boolean hasTorch;
        private boolean canFocus;
        private Handler handler;
        private CameraDevice device;
        private CameraCaptureSession session;
        private ImageReader reader;
        private Surface surface;
        private Size pictureSize;
        private int rotationDeg;
        private boolean isTorchOn;
        private boolean isClosed;

        Opening(Listener listener) {
            this.listener = listener;
        }

        synchronized void open() {
            if (isClosed || handler != null) {
                return;
            }
            thread.start();
            handler = new Handler(thread.getLooper());
            if (context.getSystemService(DevicePolicyManager.class).getCameraDisabled(null)) {
                fail(Trouble.FORBIDDEN);
                return;
            }
            CameraManager manager = context.getSystemService(CameraManager.class);
            try {
                String id = find(manager);
                if (id == null || !prepare(manager.getCameraCharacteristics(id))) {
                    fail(Trouble.NO_CAMERA);
                    return;
                }
                manager.openCamera(id, this, handler);
            } catch (CameraAccessException error) {
                fail(trouble(error));
            } catch (IllegalArgumentException error) { // it was unplugged meanwhile
                fail(Trouble.NO_CAMERA);
            } catch (SecurityException error) {
                fail(Trouble.NOT_ALLOWED);
            }
        }

        /** Returns the camera that looks where it should, else any. */
        private String find(CameraManager manager) throws CameraAccessException {
            int wanted =
                    facing == Facing.FRONT ? CameraMetadata.LENS_FACING_FRONT : CameraMetadata.LENS_FACING_BACK;
            String any = null;
            for (String id : manager.getCameraIdList()) {
                Integer looks = manager.getCameraCharacteristics(id).get(CameraCharacteristics.LENS_FACING);
                if (looks != null && looks == wanted) {
                    return id;
                }
                any = any == null ? id : any;
            }
            return any;
        }

        /** Chooses sizes and turns; returns false where the camera gives no pictures of the usual form. */
        private boolean prepare(CameraCharacteristics camera) {
            StreamConfigurationMap streams = camera.get(CameraCharacteristics.SCALER_STREAM_CONFIGURATION_MAP);
            Size[] pictures = streams == null ? null : streams.getOutputSizes(ImageFormat.YUV_420_888);
            Size[] previews = streams == null ? null : streams.getOutputSizes(SurfaceTexture.class);
            if (pictures == null || previews == null || pictures.length == 0 || previews.length == 0) {
                return false;
            }
            Integer sensor = camera.get(CameraCharacteristics.SENSOR_ORIENTATION);
            Integer looks = camera.get(CameraCharacteristics.LENS_FACING);
            sensorDeg = sensor == null ? 0 : sensor;
            boolean isFront = looks != null && looks == CameraMetadata.LENS_FACING_FRONT;
            rotationDeg = Turning.ofPictures(sensorDeg, displayDeg(), isFront);
            hasTorch = Boolean.TRUE.equals(camera.get(CameraCharacteristics.FLASH_INFO_AVAILABLE));
            canFocus = has(camera.get(CameraCharacteristics.CONTROL_AF_AVAILABLE_MODES));
            pictureSize = Sizes.choose(pictures, least);
            previewSize = Sizes.choose(previews, PREVIEW_LEAST);
            box.setAspect(Turning.turned(previewSize, rotationDeg));
            turnPreview();
            return true;
        }

        private boolean has(int[] modes) {
            for (int mode : modes == null ? new int[0] : modes) {
                if (mode == CameraMetadata.CONTROL_AF_MODE_CONTINUOUS_PICTURE) {
                    return true;
                }
            }
            return false;
        }

        @Override
        public synchronized void onOpened(CameraDevice opened) {
            if (isClosed || texture.getSurfaceTexture() == null) {
                opened.close();
                return;
            }
            device = opened;
            SurfaceTexture target = texture.getSurfaceTexture();
            target.setDefaultBufferSize(previewSize.getWidth(), previewSize.getHeight());
            surface = new Surface(target);
            reader = ImageReader.newInstance(
                    pictureSize.getWidth(), pictureSize.getHeight(), ImageFormat.YUV_420_888, 2);
            reader.setOnImageAvailableListener(this::look, handler);
            try {
                device.createCaptureSession(
                        new SessionConfiguration(
                                SessionConfiguration.SESSION_REGULAR,
                                Arrays.asList(
                                        new OutputConfiguration(surface), new OutputConfiguration(reader.getSurface())),
                                handler::post,
                                new Session()));
            } catch (CameraAccessException error) {
                fail(trouble(error));
            }
        }

        @Override
        public void onDisconnected(CameraDevice lost) {
            lost.close();
            fail(Trouble.IN_USE);
        }

        @Override
        public void onError(CameraDevice failed, int error) {
            failed.close();
            switch (error) {
                case CameraDevice.StateCallback.ERROR_CAMERA_IN_USE:
                case CameraDevice.StateCallback.ERROR_MAX_CAMERAS_IN_USE:
                    fail(Trouble.IN_USE);
                    break;
                case CameraDevice.StateCallback.ERROR_CAMERA_DISABLED:
                    fail(Trouble.FORBIDDEN);
                    break;
                default:
                    fail(Trouble.BROKEN);
            }
        }

        private final class Session extends CameraCaptureSession.StateCallback {
            @Override
            public void onConfigured(CameraCaptureSession configured) {
                synchronized (Opening.this) {
                    if (isClosed) {
                        return;
                    }
                    session = configured;
                    repeat();
                }
                main.post(
                        () -> {
                            if (isCurrent()) {
                                listener.onOpened(hasTorch);
                            }
                        });
            }

            @Override
            public void onConfigureFailed(CameraCaptureSession refused) {
                fail(Trouble.BROKEN);
            }
        }

        synchronized void setTorch(boolean isOn) {
            isTorchOn = isOn;
            if (session != null && !isClosed) {
                repeat();
            }
        }

        /** Asks for picture after picture. */
        private void repeat() {
            try {
                CaptureRequest.Builder request = device.createCaptureRequest(CameraDevice.TEMPLATE_PREVIEW);
                request.addTarget(surface);
                request.addTarget(reader.getSurface());
                if (canFocus) {
                    request.set(CaptureRequest.CONTROL_AF_MODE, CameraMetadata.CONTROL_AF_MODE_CONTINUOUS_PICTURE);
                }
                if (hasTorch) {
                    request.set(
                            CaptureRequest.FLASH_MODE,
                            isTorchOn ? CameraMetadata.FLASH_MODE_TORCH : CameraMetadata.FLASH_MODE_OFF);
                }
                session.setRepeatingRequest(request.build(), null, handler);
            } catch (CameraAccessException error) {
                fail(trouble(error));
            } catch (IllegalStateException error) { // the session was closed by the system a moment ago
                fail(Trouble.BROKEN);
            }
        }

        /** Copies the newest picture, gives its buffer back, and only then has it looked at. */
        private void look(ImageReader from) {
            Yuv picture;
            synchronized (this) {
                if (isClosed) {
                    return;
                }
                try (Image image = from.acquireLatestImage()) {
                    if (image == null) {
                        return;
                    }
                    Image.Plane[] planes = image.getPlanes();
                    picture =
                            new Yuv(
                                    image.getWidth(),
                                    image.getHeight(),
                                    copy(planes[0]),
                                    copy(planes[1]),
                                    copy(planes[2]));
                } catch (MienException | IllegalStateException | UnsupportedOperationException error) {
                    // A plane is shorter than it says, or the camera gives other pictures than were asked for.
                    fail(Trouble.BROKEN);
                    return;
                }
            }
            listener.onFrame(picture, rotationDeg);
        }

        private void fail(Trouble trouble) {
            main.post(
                    () -> {
                        if (isCurrent()) {
                            stop();
                            listener.onTrouble(trouble);
                        }
                    });
        }

        private boolean isCurrent() {
            return opening == this;
        }

        synchronized void close() {
            isClosed = true;
            if (session != null) {
                session.close();
            }
            if (device != null) {
                device.close();
            }
            if (reader != null) {
                reader.close();
            }
            if (surface != null) {
                surface.release();
            }
            thread.quitSafely();
        }
    }

    private static Yuv.Plane copy(Image.Plane plane) {
        return new Yuv.Plane(plane.getBuffer(), plane.getRowStride(), plane.getPixelStride());
    }

    private static Trouble trouble(CameraAccessException error) {
        switch (error.getReason()) {
            case CameraAccessException.CAMERA_DISABLED:
                return Trouble.FORBIDDEN;
            case CameraAccessException.CAMERA_IN_USE:
            case CameraAccessException.MAX_CAMERAS_IN_USE:
                return Trouble.IN_USE;
            case CameraAccessException.CAMERA_DISCONNECTED:
                return Trouble.NO_CAMERA;
            default:
                return Trouble.BROKEN;
        }
    }
}
