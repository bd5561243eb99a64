package mien.client.vision;

import java.nio.ByteBuffer;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * A camera's picture as it comes, in Android's YUV_420_888: a plane of luminance, two of colour at half its size, each
 * with a row stride and a pixel stride. Full range, BT.601 (JFIF), as Android's cameras write.
 */
public final class Yuv {
    /** One plane's bytes, from its position on: a row starts every {@code rowStride}, a value every {@code pixelStride}. */
    public static final class Plane {
        private final byte[] bytes;
        private final int rowStride;
        private final int pixelStride;

        /** Copies the bytes, so that the camera may have its buffer back; position and limit stay. */
        public Plane(ByteBuffer buffer, int rowStride, int pixelStride) {
            ByteBuffer view = buffer.duplicate();
            bytes = new byte[view.remaining()];
            view.get(bytes);
            this.rowStride = rowStride;
            this.pixelStride = pixelStride;
        }

        private int at(int x, int y) {
            return bytes[y * rowStride + x * pixelStride] & 0xff;
        }

        /** The last row may end with its last value. */
        private void check(int width, int height) {
            long needed = (height - 1L) * rowStride + (width - 1L) * pixelStride + 1;
            boolean overlaps = height > 1 && rowStride < (width - 1L) * pixelStride + 1;
            if (pixelStride < 1 || rowStride < 1 || overlaps || needed > bytes.length) {
                throw new MienException(
                        ErrorCode.IMAGE,
                        "the camera's picture is incomplete: " + bytes.length + " bytes for " + width + "x" + height
                                + " with strides " + rowStride + " and " + pixelStride + "; take it again");
            }
        }
    }

    public final int width;
    public final int height;
    private final Plane luminance;
    private final Plane blueness;
    private final Plane redness;

    /** Takes the three planes (Y, U, V) of a picture; throws IMAGE where one is too short for its strides. */
    public Yuv(int width, int height, Plane y, Plane u, Plane v) {
        Frame.checkSize(width, height);
        y.check(width, height);
        u.check((width + 1) / 2, (height + 1) / 2);
        v.check((width + 1) / 2, (height + 1) / 2);
        this.width = width;
        this.height = height;
        luminance = y;
        blueness = u;
        redness = v;
    }

    /**
     * Returns the picture upright and in colour: turned clockwise by {@code rotation} degrees (0, 90, 180 or 270), then
     * flipped from left to right where the camera mirrors.
     */
    public Frame upright(int rotation, boolean isMirrored) {
        Turn turn = Turn.of(rotation, isMirrored, width, height);
        Frame frame = turn.swapsSides() ? Frame.blank(height, width) : Frame.blank(width, height);
        for (int y = 0, to = 0; y < frame.height; y++) {
            for (int x = 0; x < frame.width; x++, to += 3) {
                int fromX = turn.x(x, y);
                int fromY = turn.y(x, y);
                int blue = blueness.at(fromX / 2, fromY / 2) - 128;
                int red = redness.at(fromX / 2, fromY / 2) - 128;
                write(luminance.at(fromX, fromY), blue, red, frame.rgb, to);
            }
        }
        return frame;
    }

    /** Returns the luminance upright, row by row, for codes to be read from; see {@link #upright}. */
    public byte[] uprightLuminance(int rotation, boolean isMirrored) {
        Turn turn = Turn.of(rotation, isMirrored, width, height);
        int columns = turn.swapsSides() ? height : width;
        byte[] grey = new byte[width * height];
        for (int at = 0; at < grey.length; at++) {
            int x = at % columns;
            int y = at / columns;
            grey[at] = (byte) luminance.at(turn.x(x, y), turn.y(x, y));
        }
        return grey;
    }

    /** 1.402, 0.344136, 0.714136 and 1.772 in steps of 2^-16. */
    private static void write(int light, int blue, int red, byte[] out, int at) {
        int rounded = (light << 16) + (1 << 15);
        out[at] = clamped(rounded + 91881 * red >> 16);
        out[at + 1] = clamped(rounded - 22553 * blue - 46802 * red >> 16);
        out[at + 2] = clamped(rounded + 116130 * blue >> 16);
    }

    private static byte clamped(int value) {
        return (byte) Math.max(0, Math.min(255, value));
    }

    @Override
    public String toString() {
        return "Yuv(" + width + "x" + height + ")";
    }
}
