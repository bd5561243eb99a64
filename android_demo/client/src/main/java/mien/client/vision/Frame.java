package mien.client.vision;

import mien.client.ErrorCode;
import mien.client.MienException;

/** An upright picture: {@code height} rows of {@code width} pixels, three bytes each, red, green, blue. */
public final class Frame {
    /** Longest side that is taken: a camera gives less where it is asked to. */
    public static final int MAX_SIDE = 4096;

    public final int width;
    public final int height;
    final byte[] rgb;

    private Frame(int width, int height, byte[] rgb) {
        this.width = width;
        this.height = height;
        this.rgb = rgb;
    }

    /** Returns a picture on these bytes, which it keeps; throws IMAGE where size and bytes do not belong together. */
    public static Frame of(int width, int height, byte[] rgb) {
        checkSize(width, height);
        if (rgb.length != 3L * width * height) {
            throw new MienException(
                    ErrorCode.IMAGE,
                    "the picture has " + rgb.length + " bytes, and " + width + "x" + height + " pixels; take it again");
        }
        return new Frame(width, height, rgb);
    }

    static Frame blank(int width, int height) {
        checkSize(width, height);
        return new Frame(width, height, new byte[3 * width * height]);
    }

    static void checkSize(int width, int height) {
        if (width < 1 || height < 1 || Math.max(width, height) > MAX_SIDE) {
            throw new MienException(
                    ErrorCode.IMAGE,
                    "the picture is " + width + "x" + height + "; take one of 1 to " + MAX_SIDE + " pixels a side");
        }
    }

    /** Returns a channel of a pixel, 0 to 255: 0 red, 1 green, 2 blue. */
    public int at(int x, int y, int channel) {
        return rgb[3 * (y * width + x) + channel] & 0xff;
    }

    /** Returns a copy of the pixels, row by row. */
    public byte[] pixels() {
        return rgb.clone();
    }

    /** Overwrites the pixels: nothing of the picture stays in memory. */
    public void wipe() {
        java.util.Arrays.fill(rgb, (byte) 0);
    }

    /** Returns the picture turned by quarters, anticlockwise. */
    Frame turned(int quarters) {
        Frame turned = quarters % 2 == 0 ? blank(width, height) : blank(height, width);
        Turn turn = Turn.of(360 - 90 * quarters, false, width, height);
        for (int y = 0, to = 0; y < turned.height; y++) {
            for (int x = 0; x < turned.width; x++, to += 3) {
                System.arraycopy(rgb, 3 * (turn.y(x, y) * width + turn.x(x, y)), turned.rgb, to, 3);
            }
        }
        return turned;
    }

    @Override
    public String toString() {
        return "Frame(" + width + "x" + height + ")";
    }
}
