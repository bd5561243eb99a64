package mien.app.scan;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import android.graphics.Bitmap;
import android.graphics.Canvas;
import android.graphics.Color;
import android.graphics.Matrix;
import android.graphics.Paint;
import com.google.zxing.BarcodeFormat;
import com.google.zxing.WriterException;
import com.google.zxing.common.BitMatrix;
import com.google.zxing.qrcode.QRCodeWriter;
import mien.app.camera.Pictures;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;

/** Codes as a camera sees them, of the very texts that a registrar prints. */
@RunWith(RobolectricTestRunner.class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = 34)
public class QrReaderTest {
    static final String INVITE =
            "mien://join?r=registrar.example:8443"
                    + "&rf=3b1f0a6f7e1d5c4b9a8877665544332211ffeeddccbbaa998877665544332211"
                    + "&cf=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
                    + "&t=AbCdEfGhIjKlMnOpQrStUvWxYz012345";

    @Test
    public void anInviteIsReadWhateverWayTheSensorLies() throws WriterException {
        for (int rotation : new int[] {0, 90, 180, 270}) {
            assertEquals(INVITE, new QrReader().read(Pictures.yuv(seen(code(INVITE), 0), rotation)));
        }
    }

    @Test
    public void aCodeThatIsHeldAslantIsRead() throws WriterException {
        for (float angle : new float[] {12, 45, 101}) {
            assertEquals(INVITE, new QrReader().read(Pictures.yuv(seen(code(INVITE), angle), 90)));
        }
    }

    @Test
    public void aCodeInLightOnDarkIsRead() throws WriterException {
        Bitmap inverted = code(INVITE);
        for (int y = 0; y < inverted.getHeight(); y++) {
            for (int x = 0; x < inverted.getWidth(); x++) {
                inverted.setPixel(x, y, inverted.getPixel(x, y) == Color.BLACK ? Color.WHITE : Color.BLACK);
            }
        }
        assertEquals(INVITE, new QrReader().read(Pictures.yuv(Pictures.placed(inverted, 960, 1280, Color.BLACK), 90)));
    }

    @Test
    public void aPictureWithoutACodeGivesNothing() {
        Bitmap empty = Bitmap.createBitmap(960, 1280, Bitmap.Config.ARGB_8888);
        assertNull(new QrReader().read(Pictures.yuv(empty, 90)));
    }

    /** Returns a code, black on white, with its margin. */
    static Bitmap code(String text) throws WriterException {
        BitMatrix modules = new QRCodeWriter().encode(text, BarcodeFormat.QR_CODE, 520, 520);
        Bitmap code = Bitmap.createBitmap(modules.getWidth(), modules.getHeight(), Bitmap.Config.ARGB_8888);
        for (int y = 0; y < modules.getHeight(); y++) {
            for (int x = 0; x < modules.getWidth(); x++) {
                code.setPixel(x, y, modules.get(x, y) ? Color.BLACK : Color.WHITE);
            }
        }
        return code;
    }

    /** Returns what an upright camera sees of a code on a grey table, turned by an angle in degrees. */
    static Bitmap seen(Bitmap code, float angle) {
        Bitmap table = Bitmap.createBitmap(960, 1280, Bitmap.Config.ARGB_8888);
        Canvas canvas = new Canvas(table);
        canvas.drawColor(Color.rgb(150, 140, 130));
        Matrix placed = new Matrix();
        placed.postTranslate(-code.getWidth() / 2f, -code.getHeight() / 2f);
        placed.postRotate(angle);
        placed.postTranslate(480, 640);
        canvas.drawBitmap(code, placed, new Paint(Paint.FILTER_BITMAP_FLAG));
        return table;
    }
}
