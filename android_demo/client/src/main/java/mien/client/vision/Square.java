package mien.client.vision;

/** A square of a picture: {@code width} pixels wide there, read as {@code side} pixels. */
final class Square {
    private final double centreX;
    private final double centreY;
    private final double scale;
    private final double along;
    private final double across;
    final int side;

    /** Takes a square around a place; what leans clockwise by {@code turnDeg} in the picture stands upright in it. */
    Square(double centreX, double centreY, double width, int side, double turnDeg) {
        this.centreX = centreX;
        this.centreY = centreY;
        this.side = side;
        scale = width / side;
        along = Math.cos(Math.toRadians(turnDeg));
        across = Math.sin(Math.toRadians(turnDeg));
    }

    /** Returns its pixels, read as {@link Aligner} reads; throws LOW_QUALITY where it has no size. */
    Frame read(Frame frame) {
        double low = -0.5;
        double high = side - 0.5;
        double[] corners = {low, low, high, low, high, high, low, high};
        return Frame.of(side, side, Aligner.read(frame, toPicture(corners), corners, side));
    }

    /** Returns where points (x0, y0, x1, ...) of the square lie in the picture. */
    double[] toPicture(double[] points) {
        double middle = (side - 1) / 2.0;
        double[] placed = new double[points.length];
        for (int i = 0; i < points.length; i += 2) {
            double x = (points[i] - middle) * scale;
            double y = (points[i + 1] - middle) * scale;
            placed[i] = x * along - y * across + centreX;
            placed[i + 1] = x * across + y * along + centreY;
        }
        return placed;
    }
}
