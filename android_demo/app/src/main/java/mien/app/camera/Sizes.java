package mien.app.camera;

import android.util.Size;

/** Which of a camera's sizes are worth taking. */
final class Sizes {
    private static final double ASPECT = 4 / 3.0;
    private static final double TOLERANCE = 0.02;

    private Sizes() {}

    /**
     * Returns the smallest size of 4:3 with at least {@code least} pixels on its long side, else the largest below;
     * a camera without 4:3 gives what it has. Null where the list is empty.
     */
    static Size choose(Size[] sizes, int least) {
        Size best = null;
        for (Size size : sizes) {
            if (best == null || isBetter(size, best, least)) {
                best = size;
            }
        }
        return best;
    }

    private static boolean isBetter(Size a, Size b, int least) {
        if (isFourToThree(a) != isFourToThree(b)) {
            return isFourToThree(a);
        }
        int longA = Math.max(a.getWidth(), a.getHeight());
        int longB = Math.max(b.getWidth(), b.getHeight());
        if (longA >= least != longB >= least) {
            return longA >= least;
        }
        return longA >= least ? longA < longB : longA > longB;
    }

    private static boolean isFourToThree(Size size) {
        double across = Math.max(size.getWidth(), size.getHeight());
        double down = Math.min(size.getWidth(), size.getHeight());
        return Math.abs(across / down - ASPECT) < TOLERANCE;
    }
}
