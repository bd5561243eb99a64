package mien.client.vision;

import java.util.List;

/** How a face lies in its picture; angles in degrees: yaw towards the picture's right, pitch upwards, roll clockwise. */
final class Geometry {
    /** A frontal face as YuNet marks it, in pixels of a crop; third coordinate: depth towards the camera. */
    private static final double[][] FRONTAL = {
        {37.15, 52.54, 0}, {74.89, 52.54, 0}, {56.02, 73.77, 24}, {39.92, 90.30, 3}, {72.12, 90.30, 3}
    };

    private static final double FRONTAL_EYE_DISTANCE = 74.89 - 37.15;

    final double score;
    final double eyeDistancePx;
    final double yawDeg;
    final double pitchDeg;
    final double rollDeg;
    /** The share of the face inside the picture. */
    final double visible;
    /** How far the landmarks are from those of any turned face, in pixels of the crop. */
    final double landmarkErrorPx;

    private Geometry(Frame frame, Face face, Similarity toFrontal) {
        double[] pose = pose(face, toFrontal);
        score = face.score;
        eyeDistancePx = FRONTAL_EYE_DISTANCE / toFrontal.scale();
        yawDeg = pose[0];
        pitchDeg = pose[1];
        landmarkErrorPx = pose[2];
        rollDeg = -Math.toDegrees(Math.atan2(toFrontal.b, toFrontal.a));
        visible = visible(frame, face, toFrontal);
    }

    /** Returns the geometry of a face; null where its landmarks give no direction. */
    static Geometry of(Frame frame, Face face) {
        double[] frontal = new double[10];
        for (int i = 0; i < 5; i++) {
            frontal[2 * i] = FRONTAL[i][0];
            frontal[2 * i + 1] = FRONTAL[i][1];
        }
        Similarity toFrontal = Similarity.between(face.landmarks, frontal);
        return toFrontal == null ? null : new Geometry(frame, face, toFrontal);
    }

    /**
     * Returns yaw, pitch and the root mean square error of the landmarks: the affine map from a frontal face in space to
     * the landmarks is a scaled, projected rotation (DeMenthon and Davis, IJCV 1995, first iteration).
     */
    private static double[] pose(Face face, Similarity toFrontal) {
        double[][] model = new double[5][3];
        double[][] seen = new double[5][2];
        for (int i = 0; i < 5; i++) {
            model[i] = FRONTAL[i].clone();
            seen[i][0] = toFrontal.x(face.landmarks[2 * i], face.landmarks[2 * i + 1]);
            seen[i][1] = toFrontal.y(face.landmarks[2 * i], face.landmarks[2 * i + 1]);
        }
        centre(model);
        centre(seen);
        double[] right = LeastSquares.solve(model, column(seen, 0));
        double[] down = LeastSquares.solve(model, column(seen, 1));
        double squares = 0;
        for (int i = 0; i < 5; i++) {
            squares += square(dot(model[i], right) - seen[i][0]) + square(dot(model[i], down) - seen[i][1]);
        }
        double lengthRight = Math.sqrt(dot(right, right));
        double lengthDown = Math.sqrt(dot(down, down));
        double scale = lengthRight * lengthDown;
        double towards = (right[0] * down[1] - right[1] * down[0]) / scale;
        if (!(Math.min(lengthRight, lengthDown) >= 1e-6) || !(towards > 0)) {
            return new double[] {90, 90, Double.POSITIVE_INFINITY};
        }
        return new double[] {
            Math.toDegrees(Math.atan2(right[2] / lengthRight, towards)),
            Math.toDegrees(Math.atan2(-down[2] / lengthDown, towards)),
            Math.sqrt(squares / 5)
        };
    }

    private static void centre(double[][] rows) {
        for (int axis = 0; axis < rows[0].length; axis++) {
            double mean = 0;
            for (double[] row : rows) {
                mean += row[axis] / rows.length;
            }
            for (double[] row : rows) {
                row[axis] -= mean;
            }
        }
    }

    private static double[] column(double[][] rows, int axis) {
        double[] column = new double[rows.length];
        for (int i = 0; i < column.length; i++) {
            column[i] = rows[i][axis];
        }
        return column;
    }

    private static double dot(double[] a, double[] b) {
        double sum = 0;
        for (int i = 0; i < a.length; i++) {
            sum += a[i] * b[i];
        }
        return sum;
    }

    private static double square(double value) {
        return value * value;
    }

    /**
     * Returns the share of a face that lies inside the picture: of its box or of the crop's inner part, the smaller. The
     * detector draws its box, and guesses landmarks, towards the inside at an edge; each alone would miss that.
     */
    private static double visible(Frame frame, Face face, Similarity toFrontal) {
        double insideX = Math.min(face.x + face.width, frame.width) - Math.max(face.x, 0);
        double insideY = Math.min(face.y + face.height, frame.height) - Math.max(face.y, 0);
        if (!(face.area() > 0) || !(insideX > 0) || !(insideY > 0)) {
            return 0;
        }
        double squares = toFrontal.a * toFrontal.a + toFrontal.b * toFrontal.b;
        int count = 0;
        int numInside = 0;
        for (int v = 28; v < 108; v += 4) {
            for (int u = 20; u < 92; u += 4, count++) {
                double x = (toFrontal.a * (u - toFrontal.shiftX) + toFrontal.b * (v - toFrontal.shiftY)) / squares;
                double y = (toFrontal.a * (v - toFrontal.shiftY) - toFrontal.b * (u - toFrontal.shiftX)) / squares;
                boolean isInside = x >= -0.5 && y >= -0.5 && x <= frame.width - 0.5 && y <= frame.height - 0.5;
                numInside += isInside ? 1 : 0;
            }
        }
        return Math.min(insideX * insideY / face.area(), (double) numInside / count);
    }

    void judge(List<Hint> hints) {
        require(eyeDistancePx >= QualityPolicy.MIN_EYE_DISTANCE_PX, Hint.TOO_SMALL, hints);
        require(Math.abs(yawDeg) <= QualityPolicy.MAX_YAW_DEG, Hint.TURNED, hints);
        require(Math.abs(pitchDeg) <= QualityPolicy.MAX_PITCH_DEG, Hint.PITCHED, hints);
        require(Math.abs(rollDeg) <= QualityPolicy.MAX_ROLL_DEG, Hint.ROLLED, hints);
        require(score >= QualityPolicy.MIN_SCORE, Hint.UNCLEAR, hints);
        require(landmarkErrorPx <= QualityPolicy.MAX_LANDMARK_ERROR_PX, Hint.LANDMARKS, hints);
        require(visible >= QualityPolicy.MIN_VISIBLE, Hint.CUT_OFF, hints);
    }

    static void require(boolean holds, Hint hint, List<Hint> hints) {
        if (!holds) {
            hints.add(hint);
        }
    }
}
