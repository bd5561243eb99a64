package mien.client.vision;

/** Pixels read through an affine map, as OpenCV's warpAffine: bilinear, black outside the picture. */
final class Warp {
    private Warp() {}

    /** Returns the picture (width, height) whose pixel p shows what lies at the place that {@code map} takes to p. */
    static byte[] apply(Frame frame, Similarity map, int width, int height) {
        float[] back = map.inverse();
        byte[] out = new byte[3 * width * height];
        for (int y = 0, to = 0; y < height; y++) {
            for (int x = 0; x < width; x++, to += 3) {
                float atX = x * back[0] + (y * back[1] + back[2]);
                float atY = x * back[3] + (y * back[4] + back[5]);
                // Written so that what is no number lies outside.
                if (atX >= -1 && atY >= -1 && atX < frame.width && atY < frame.height) {
                    read(frame, atX, atY, out, to);
                }
            }
        }
        return out;
    }

    private static void read(Frame frame, float atX, float atY, byte[] out, int to) {
        int x = (int) Math.floor(atX);
        int y = (int) Math.floor(atY);
        float right = atX - x;
        float down = atY - y;
        for (int channel = 0; channel < 3; channel++) {
            float upperLeft = pixel(frame, x, y, channel);
            float lowerLeft = pixel(frame, x, y + 1, channel);
            float upper = upperLeft + right * (pixel(frame, x + 1, y, channel) - upperLeft);
            float lower = lowerLeft + right * (pixel(frame, x + 1, y + 1, channel) - lowerLeft);
            out[to + channel] = rounded(upper + down * (lower - upper));
        }
    }

    private static int pixel(Frame frame, int x, int y, int channel) {
        boolean isInside = x >= 0 && y >= 0 && x < frame.width && y < frame.height;
        return isInside ? frame.at(x, y, channel) : 0;
    }

    /** Returns the nearest whole number, halves to even, within a byte. */
    static byte rounded(float value) {
        return (byte) Math.max(0, Math.min(255, (int) Math.rint(value)));
    }
}
