package mien.app.camera;

import android.content.Context;
import android.content.res.AssetManager;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import mien.app.R;
import mien.client.Device;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.vision.FaceReader;
import mien.client.vision.Hint;
import mien.client.vision.YuNet;
import mien.client.wire.Retry;

/** What faces are found and recognised with, and how a person is told to stand better. */
public final class Faces {
    /** Enough for a face at arm's length, and for the detector's first search. */
    public static final int LEAST_PIXELS = 640;

    private static final String DETECTOR = "face_detection_yunet_2023mar_int8bq.onnx";
    private static FaceReader reader;

    private Faces() {}

    /**
     * Loads the detector and the model, and returns what reads faces; fetches the released model where this phone has
     * none. Slow. Throws what {@link Device#update} does.
     */
    public static synchronized FaceReader prepare(Context context, Device device) {
        try {
            device.recogniser();
        } catch (MienException error) {
            if (error.code() != ErrorCode.NOT_FOUND) {
                throw error;
            }
            device.update(Retry.AT_A_SCREEN_MS);
        }
        if (reader == null) {
            reader = new FaceReader(YuNet.of(detector(context.getAssets())));
        }
        return reader;
    }

    private static byte[] detector(AssetManager assets) {
        try (InputStream in = assets.open(DETECTOR)) {
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            byte[] some = new byte[1 << 16];
            for (int count = in.read(some); count >= 0; count = in.read(some)) {
                all.write(some, 0, count);
            }
            return all.toByteArray();
        } catch (IOException error) {
            throw new MienException(ErrorCode.OTHER, "the face detector is not in this app; install it again", error);
        }
    }

    /** Returns the sentence of a hint. */
    public static int sentence(Hint hint) {
        switch (hint) {
            case NO_FACE:
                return R.string.hint_no_face;
            case MULTIPLE_FACES:
                return R.string.hint_multiple_faces;
            case TOO_SMALL:
                return R.string.hint_too_small;
            case TURNED:
                return R.string.hint_turned;
            case PITCHED:
                return R.string.hint_pitched;
            case ROLLED:
                return R.string.hint_rolled;
            case LANDMARKS:
            case UNCLEAR:
                return R.string.hint_unclear;
            case CUT_OFF:
                return R.string.hint_cut_off;
            case BLURRED:
                return R.string.hint_blurred;
            case TOO_DARK:
                return R.string.hint_too_dark;
            case TOO_BRIGHT:
                return R.string.hint_too_bright;
            case LOW_CONTRAST:
                return R.string.hint_low_contrast;
            default:
                throw new IllegalArgumentException("a hint without a sentence: " + hint);
        }
    }
}
