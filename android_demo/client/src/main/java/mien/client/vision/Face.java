package mien.client.vision;

import java.util.List;

/** A face that was found, in pixels of the picture; it may reach over the border. */
public final class Face {
    /** A face with less than this share of the largest one's area (half its width) stands in the background. */
    public static final double RELEVANT_SHARE = 0.25;

    private static final int NUM_LANDMARKS = 5;

    public final double x;
    public final double y;
    public final double width;
    public final double height;
    /** How sure the detector is, 0 to 1. */
    public final double score;

    /** (x, y) of the eyes at the image's left and right, the tip of the nose, the mouth's left and right corner. */
    final double[] landmarks;

    /** Places a face in a picture: its box, five landmarks (x, y each), and how sure the detector is. */
    public Face(double x, double y, double width, double height, double[] landmarks, double score) {
        if (landmarks.length != 2 * NUM_LANDMARKS) {
            throw new IllegalArgumentException("a face has " + NUM_LANDMARKS + " landmarks");
        }
        this.x = x;
        this.y = y;
        this.width = width;
        this.height = height;
        this.landmarks = landmarks.clone();
        this.score = score;
    }

    /** Returns the box's area in pixels. */
    public double area() {
        return width * height;
    }

    /** Returns the face by which a picture of one person is meant, the largest; the first of equal ones. */
    static Face largest(List<Face> faces) {
        Face largest = faces.get(0);
        for (Face face : faces) {
            largest = face.area() > largest.area() ? face : largest;
        }
        return largest;
    }

    /** Returns this face of a picture that was resized in the picture that it was. */
    Face unscaled(Frame resized, Frame before) {
        double scaleX = (double) resized.width / before.width;
        double scaleY = (double) resized.height / before.height;
        double[] points = new double[landmarks.length];
        for (int i = 0; i < points.length; i += 2) {
            // Pixel i covers [i - 1/2, i + 1/2], before and after resizing.
            points[i] = (landmarks[i] + 0.5) / scaleX - 0.5;
            points[i + 1] = (landmarks[i + 1] + 0.5) / scaleY - 0.5;
        }
        return new Face(
                (x + 0.5) / scaleX - 0.5, (y + 0.5) / scaleY - 0.5, width / scaleX, height / scaleY, points, score);
    }

    /** Returns this face of a picture that {@link Frame#turned} turned by quarters in the picture that it was. */
    Face turnedBack(int quarters, Frame before) {
        double[] points = new double[landmarks.length + 4];
        System.arraycopy(landmarks, 0, points, 0, landmarks.length);
        System.arraycopy(new double[] {x, y, x + width, y + height}, 0, points, landmarks.length, 4);
        for (int turn = 0; turn < quarters; turn++) {
            // The point (x, y) was at (last - y, x) a quarter before, where the last column was `last`.
            int last = ((quarters - turn) % 2 == 0 ? before.height : before.width) - 1;
            for (int i = 0; i < points.length; i += 2) {
                double row = points[i];
                points[i] = last - points[i + 1];
                points[i + 1] = row;
            }
        }
        int box = landmarks.length;
        double left = Math.min(points[box], points[box + 2]);
        double top = Math.min(points[box + 1], points[box + 3]);
        double right = Math.max(points[box], points[box + 2]);
        double bottom = Math.max(points[box + 1], points[box + 3]);
        return new Face(left, top, right - left, bottom - top, java.util.Arrays.copyOf(points, box), score);
    }

    /** Returns how many faces are not far in the background. */
    static int countRelevant(List<Face> faces) {
        double least = RELEVANT_SHARE * largest(faces).area();
        int count = 0;
        for (Face face : faces) {
            count += face.area() >= least ? 1 : 0;
        }
        return count;
    }

    @Override
    public String toString() {
        return "Face(***)";
    }
}
