package mien.app.scan;

import com.google.zxing.BinaryBitmap;
import com.google.zxing.DecodeHintType;
import com.google.zxing.LuminanceSource;
import com.google.zxing.PlanarYUVLuminanceSource;
import com.google.zxing.ReaderException;
import com.google.zxing.common.HybridBinarizer;
import com.google.zxing.qrcode.QRCodeReader;
import java.util.Collections;
import java.util.Map;
import mien.client.vision.Yuv;

/** Reads the QR code in a camera's picture, whatever way up it is, dark on light or light on dark. */
final class QrReader {
    private static final Map<DecodeHintType, ?> HINTS = Collections.singletonMap(DecodeHintType.TRY_HARDER, true);

    private final QRCodeReader reader = new QRCodeReader();

    /** Returns the text of the code, null where none can be read. */
    String read(Yuv camera) {
        // A code is read whatever way up it is, so the picture stays as it comes from the sensor.
        byte[] grey = camera.uprightLuminance(0, false);
        LuminanceSource picture =
                new PlanarYUVLuminanceSource(
                        grey, camera.width, camera.height, 0, 0, camera.width, camera.height, false);
        String text = read(picture);
        return text == null ? read(picture.invert()) : text;
    }

    private String read(LuminanceSource picture) {
        try {
            return reader.decode(new BinaryBitmap(new HybridBinarizer(picture)), HINTS).getText();
        } catch (ReaderException | RuntimeException | OutOfMemoryError error) {
            // No code, or one that cannot be made out yet, which ends no app however ZXing says it: the next picture comes.
            return null;
        }
    }
}
