package mien.client.vision;

import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Which way up a face is, told by a few looks at it; device_sdk/faces/upright.py says why, and what was measured. */
final class Upright {
    /** A look is at so many pixels around the face; the last is finer, for the landmarks. */
    private static final int SIDE = 96;

    private static final int FINE_SIDE = 320;
    /** How much wider than the box of a face a look at it is. */
    private static final double ROOM = 1.6;
    /** What is read once, and looked at turned, is wider still. */
    private static final int AROUND = SIDE * 3 / 2;

    /** A face that was found so surely, and is seen so surely by a look straight at it, is upright. */
    private static final double SURE = 0.91;

    private static final int NUM_TURNS = 8;
    /** How much surer the surest look has to be than any that disagrees. */
    private static final double SURER = 0.02;

    private static final double AGREE_DEG = 75;
    /** A face that leans by less is taken as it was found, if it was found so. */
    private static final double STRAIGHT_DEG = 5;
    /** A face that was set upright and leans by more was seen wrongly. */
    private static final double REST_DEG = 25;
    private final Frame frame;
    private final Face face;
    private final FaceFinder finder;

    private Upright(Frame frame, Face face, FaceFinder finder) {
        this.frame = frame;
        this.face = face;
        this.finder = finder;
    }

    /** Returns a face with landmarks that were found with its head up, its box as it was found; null where that is unclear. */
    static Face set(Frame frame, Face face, FaceFinder finder) {
        try {
            double first = Aligner.rollDeg(face);
            return new Upright(frame, face, finder).from(first);
        } catch (MienException error) {
            if (error.code() == ErrorCode.LOW_QUALITY) {
                return null; // landmarks in one point
            }
            throw error;
        }
    }

    private Square square(double room, int side, double turnDeg) {
        double width = room * ROOM * Math.max(face.width, face.height);
        return new Square(face.x + face.width / 2, face.y + face.height / 2, width, side, turnDeg);
    }

    private Face from(double first) {
        double direction = direction();
        if (Double.isNaN(direction)) {
            return null;
        }
        if (Math.abs(direction) <= STRAIGHT_DEG && Math.abs(first) <= REST_DEG) {
            return face;
        }
        Square fine = square(1.5, FINE_SIDE, direction);
        List<Face> found = finder.search(fine.read(frame));
        if (found.isEmpty()) {
            return null;
        }
        Face nearest = nearest(found, (fine.side - 1) / 2.0);
        if (Math.abs(Aligner.rollDeg(nearest)) > REST_DEG) {
            return null;
        }
        return new Face(face.x, face.y, face.width, face.height, fine.toPicture(nearest.landmarks), nearest.score);
    }

    /** Returns about by how many degrees the face leans clockwise, as the surest look says; no number where none is. */
    private double direction() {
        double[] scores = new double[NUM_TURNS];
        double[] directions = new double[NUM_TURNS];
        Face straight = look(square(1, SIDE, 0).read(frame));
        note(straight, 0, scores, directions);
        if (Math.min(face.score, scores[0]) >= SURE) {
            return directions[0];
        }
        double middle = (AROUND - 1) / 2.0;
        Frame around = square(1.5, AROUND, 0).read(frame);
        int surest = 0;
        for (int i = 1; i < NUM_TURNS; i++) {
            double turn = i * 360.0 / NUM_TURNS;
            note(look(new Square(middle, middle, SIDE, SIDE, turn).read(around)), i, scores, directions);
            boolean isSurer = scores[i] > scores[surest]
                    || (scores[i] == scores[surest] && directions[i] > directions[surest]);
            surest = isSurer ? i : surest;
        }
        if (scores[surest] == 0) {
            return Double.NaN;
        }
        for (int i = 0; i < NUM_TURNS; i++) {
            boolean disagrees = Math.abs(wrapped(directions[i] - directions[surest])) > AGREE_DEG;
            if (disagrees && scores[i] > scores[surest] - SURER) {
                return Double.NaN;
            }
        }
        return wrapped(directions[surest]);
    }

    /** Sets the score of the i-th look and by how many degrees the face leans; a look that saw none leaves both 0. */
    private static void note(Face seen, int i, double[] scores, double[] directions) {
        if (seen != null) {
            scores[i] = seen.score;
            directions[i] = i * 360.0 / NUM_TURNS + Aligner.rollDeg(seen);
        }
    }

    private Face look(Frame pixels) {
        List<Face> found = finder.search(pixels);
        return found.isEmpty() ? null : found.get(0);
    }

    private static Face nearest(List<Face> faces, double middle) {
        Face nearest = null;
        double least = Double.POSITIVE_INFINITY;
        for (Face each : faces) {
            double distance = Math.hypot(each.x + each.width / 2 - middle, each.y + each.height / 2 - middle);
            if (nearest == null || distance < least) {
                nearest = each;
                least = distance;
            }
        }
        return nearest;
    }

    /** Returns an angle within half a turn of 0. */
    private static double wrapped(double degrees) {
        return degrees + 180 - 360 * Math.floor((degrees + 180) / 360) - 180;
    }
}
