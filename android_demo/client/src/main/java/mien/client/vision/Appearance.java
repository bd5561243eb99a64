package mien.client.vision;

import java.util.Arrays;
import java.util.List;

/** How an aligned crop looks, in the part that is face in every pose; nothing compares the brightness of skin. */
final class Appearance {
    private static final int FIRST_ROW = 28;
    private static final int ROWS = 80;
    private static final int COLUMNS = 72;
    private static final int SATURATED = 250;
    private static final int WINDOW = 7;

    /** 1 - perceptual blur, 0 to 1. */
    final double sharpness;
    /** The 95th percentile of the grey levels. */
    final double highlight;
    /** The share of pixels that are white. */
    final double saturated;
    /** The standard deviation of the grey levels. */
    final double contrast;

    private Appearance(int[][] grey) {
        int[] sorted = new int[ROWS * COLUMNS];
        double sum = 0;
        double squares = 0;
        int numSaturated = 0;
        for (int i = 0; i < sorted.length; i++) {
            int value = grey[i / COLUMNS][i % COLUMNS];
            sorted[i] = value;
            sum += value;
            squares += (double) value * value;
            numSaturated += value >= SATURATED ? 1 : 0;
        }
        Arrays.sort(sorted);
        double place = 0.95 * (sorted.length - 1);
        int below = (int) place;
        double mean = sum / sorted.length;
        highlight = sorted[below] + (place - below) * (sorted[below + 1] - sorted[below]);
        saturated = (double) numSaturated / sorted.length;
        contrast = Math.sqrt(Math.max(0, squares / sorted.length - mean * mean));
        sharpness = 1 - Math.max(blur(grey), blur(transposed(grey)));
    }

    static Appearance of(byte[] crop) {
        int left = (Aligner.SIDE - COLUMNS) / 2;
        int[][] grey = new int[ROWS][COLUMNS];
        for (int y = 0; y < ROWS; y++) {
            for (int x = 0; x < COLUMNS; x++) {
                int at = 3 * ((FIRST_ROW + y) * Aligner.SIDE + left + x);
                // 0.299, 0.587 and 0.114 in steps of 2^-15.
                int weighed = 9798 * (crop[at] & 0xff) + 19235 * (crop[at + 1] & 0xff) + 3735 * (crop[at + 2] & 0xff);
                grey[y][x] = weighed + (1 << 14) >> 15;
            }
        }
        return new Appearance(grey);
    }

    private static int[][] transposed(int[][] grey) {
        int[][] turned = new int[grey[0].length][grey.length];
        for (int y = 0; y < grey.length; y++) {
            for (int x = 0; x < grey[0].length; x++) {
                turned[x][y] = grey[y][x];
            }
        }
        return turned;
    }

    /**
     * Returns how blurred a picture looks from top to bottom, 0 to 1: the share of its gradients that one more blur
     * leaves alone (Crete et al., HVEI 2007). Steps of one grey level are left out: rounding makes them.
     */
    private static double blur(int[][] grey) {
        double total = 0;
        double taken = 0;
        for (int x = 0; x < grey[0].length; x++) {
            for (int y = 0; y + 1 < grey.length; y++) {
                int before = Math.abs(grey[y + 1][x] - grey[y][x]);
                if (before > 1) {
                    double after = Math.abs(mean(grey, x, y + 1) - mean(grey, x, y));
                    total += before;
                    taken += Math.max(0, before - after);
                }
            }
        }
        return total == 0 ? 1 : 1 - taken / total;
    }

    /** Returns the mean of a column around a row; the picture goes on mirrored beyond its edges. */
    private static double mean(int[][] grey, int x, int y) {
        int sum = 0;
        for (int row = y - WINDOW / 2; row <= y + WINDOW / 2; row++) {
            int inside = Math.abs(row);
            sum += grey[inside < grey.length ? inside : 2 * (grey.length - 1) - inside][x];
        }
        return (double) sum / WINDOW;
    }

    void judge(List<Hint> hints) {
        Geometry.require(sharpness >= QualityPolicy.MIN_SHARPNESS, Hint.BLURRED, hints);
        Geometry.require(highlight >= QualityPolicy.MIN_HIGHLIGHT, Hint.TOO_DARK, hints);
        Geometry.require(saturated <= QualityPolicy.MAX_SATURATED, Hint.TOO_BRIGHT, hints);
        Geometry.require(contrast >= QualityPolicy.MIN_CONTRAST, Hint.LOW_CONTRAST, hints);
    }
}
