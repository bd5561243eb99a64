package mien.client.vision;

/** Pictures of nobody, drawn as Python's vectors say. */
public final class Drawings {
    private static final double[][] HEAD = {
        {37.15, 52.54, 0}, {74.89, 52.54, 0}, {56.02, 73.77, 24}, {39.92, 90.30, 3}, {72.12, 90.30, 3}
    };

    private Drawings() {}

    /** Returns a picture with ((7 x + 3 y + 50 c) ^ (x y / 8)) mod 256. */
    public static Frame pattern(int width, int height) {
        byte[] rgb = new byte[3 * width * height];
        for (int i = 0; i < rgb.length; i++) {
            int x = i / 3 % width;
            int y = i / 3 / width;
            rgb[i] = (byte) (7 * x + 3 * y + 50 * (i % 3) ^ x * y / 8);
        }
        return Frame.of(width, height, rgb);
    }

    /** Returns squares of {@code cell} pixels: offset + slope (x mod 16) + 2 c, + gain on every other; 255 at most. */
    public static Frame squares(int width, int height, int cell, int gain, int offset, int slope) {
        byte[] rgb = new byte[3 * width * height];
        for (int i = 0; i < rgb.length; i++) {
            int x = i / 3 % width;
            int y = i / 3 / width;
            int light = offset + gain * ((x / cell + y / cell) % 2) + slope * (x % 16) + 2 * (i % 3);
            rgb[i] = (byte) Math.min(255, light);
        }
        return Frame.of(width, height, rgb);
    }

    /** Returns a frame that shows a good face wherever {@link #head} says that one is; each number gives another one. */
    public static Frame good(int number) {
        return squares(160, 150, 16, 100, 80 + number % 60, 0);
    }

    /** Returns a face in the middle of {@link #good}, turned to the picture's right. */
    public static Face head(double yawDeg, double score) {
        double yaw = Math.toRadians(yawDeg);
        double[] landmarks = new double[10];
        for (int i = 0; i < 5; i++) {
            landmarks[2 * i] = (HEAD[i][0] - 56) * Math.cos(yaw) + HEAD[i][2] * Math.sin(yaw) + 80;
            landmarks[2 * i + 1] = HEAD[i][1] - 56 + 72;
        }
        return new Face(40, 25, 80, 100, landmarks, score);
    }
}
