package mien.client.vision;

/** A map of the plane: scale, rotation and shift, (x, y) to (a x - b y + shiftX, b x + a y + shiftY). */
final class Similarity {
    /** Points nearer together than this (root mean square distance from their mean, pixels) say nothing of a direction. */
    private static final double MIN_SPREAD = 0.5;

    private static final double MIN_SCALE = 1e-4;

    final double a;
    final double b;
    final double shiftX;
    final double shiftY;

    private Similarity(double a, double b, double shiftX, double shiftY) {
        this.a = a;
        this.b = b;
        this.shiftX = shiftX;
        this.shiftY = shiftY;
    }

    /**
     * Returns the map that takes points (x0, y0, x1, ...) nearest to others, by the sum of squared distances (Umeyama
     * 1991; in the plane the best rotation is that of a sum of complex products, never a reflection). Null where the
     * points coincide, are not finite, or give no direction.
     */
    static Similarity between(double[] source, double[] target) {
        int count = source.length / 2;
        double[] from = mean(source);
        double[] to = mean(target);
        double variance = 0;
        double along = 0;
        double across = 0;
        for (int i = 0; i < count; i++) {
            double x = source[2 * i] - from[0];
            double y = source[2 * i + 1] - from[1];
            double u = target[2 * i] - to[0];
            double v = target[2 * i + 1] - to[1];
            variance += x * x + y * y;
            along += x * u + y * v;
            across += x * v - y * u;
        }
        double scale = Math.hypot(along, across) / variance;
        // Written so that what is no number fails.
        if (!(variance / count > MIN_SPREAD * MIN_SPREAD) || !(scale > MIN_SCALE) || Double.isInfinite(scale)) {
            return null;
        }
        double a = along / variance;
        double b = across / variance;
        return new Similarity(a, b, to[0] - a * from[0] + b * from[1], to[1] - b * from[0] - a * from[1]);
    }

    private static double[] mean(double[] points) {
        double x = 0;
        double y = 0;
        for (int i = 0; i < points.length; i += 2) {
            x += points[i];
            y += points[i + 1];
        }
        return new double[] {2 * x / points.length, 2 * y / points.length};
    }

    double scale() {
        return Math.hypot(a, b);
    }

    double x(double x, double y) {
        return a * x - b * y + shiftX;
    }

    double y(double x, double y) {
        return b * x + a * y + shiftY;
    }

    /** Returns the coefficients of the way back: x = [0] u + [1] v + [2], y = [3] u + [4] v + [5]. */
    float[] inverse() {
        double squares = a * a + b * b;
        double p = a / squares;
        double q = b / squares;
        return new float[] {
            (float) p, (float) q, (float) (-p * shiftX - q * shiftY),
            (float) -q, (float) p, (float) (q * shiftX - p * shiftY)
        };
    }
}
