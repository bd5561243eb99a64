package mien.app.camera;

import android.graphics.Bitmap;
import android.graphics.BitmapFactory;
import android.graphics.Canvas;
import android.graphics.Color;
import android.graphics.Matrix;
import java.io.File;
import java.nio.ByteBuffer;
import mien.client.vision.Yuv;

/** Pictures as a camera would deliver them. */
public final class Pictures {
    private Pictures() {}

    /** Returns an upright picture as a sensor sees it that lies {@code rotationDeg} from upright: JFIF, tight planes. */
    public static Yuv yuv(Bitmap upright, int rotationDeg) {
        Matrix back = new Matrix();
        back.postRotate(-rotationDeg);
        Bitmap lying = Bitmap.createBitmap(upright, 0, 0, upright.getWidth(), upright.getHeight(), back, false);
        int width = lying.getWidth();
        int height = lying.getHeight();
        int half = (width + 1) / 2;
        byte[] y = new byte[width * height];
        byte[] u = new byte[half * ((height + 1) / 2)];
        byte[] v = new byte[u.length];
        int[] colours = new int[width * height];
        lying.getPixels(colours, 0, width, 0, 0, width, height);
        for (int i = 0; i < colours.length; i++) {
            double r = Color.red(colours[i]);
            double g = Color.green(colours[i]);
            double b = Color.blue(colours[i]);
            int at = i / width / 2 * half + i % width / 2;
            y[i] = clipped(0.299 * r + 0.587 * g + 0.114 * b);
            u[at] = clipped(128 - 0.168736 * r - 0.331264 * g + 0.5 * b);
            v[at] = clipped(128 + 0.5 * r - 0.418688 * g - 0.081312 * b);
        }
        return new Yuv(width, height, plane(y, width), plane(u, half), plane(v, half));
    }

    private static Yuv.Plane plane(byte[] bytes, int rowStride) {
        return new Yuv.Plane(ByteBuffer.wrap(bytes), rowStride, 1);
    }

    /** Returns what an upright camera sees of a synthetic person (nobody's face) before a grey wall. */
    public static Bitmap face(String person, int number) {
        String name = String.format("simulation/synthetic/faces/test/%s/%02d.jpg", person, number);
        Bitmap face = BitmapFactory.decodeFile(new File(System.getProperty("mien.root"), name).getPath());
        return placed(face, 480, 640, Color.rgb(120, 120, 120));
    }

    /** Returns a picture in the middle of a larger one of one colour. */
    public static Bitmap placed(Bitmap inside, int width, int height, int ground) {
        Bitmap whole = Bitmap.createBitmap(width, height, Bitmap.Config.ARGB_8888);
        Canvas canvas = new Canvas(whole);
        canvas.drawColor(ground);
        canvas.drawBitmap(inside, (width - inside.getWidth()) / 2f, (height - inside.getHeight()) / 2f, null);
        return whole;
    }

    private static byte clipped(double value) {
        return (byte) Math.max(0, Math.min(255, Math.round(value)));
    }
}
