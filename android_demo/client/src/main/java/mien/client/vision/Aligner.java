package mien.client.vision;

import mien.client.ErrorCode;
import mien.client.MienException;

/** From five landmarks to the aligned crop that recognisers expect: 112 rows of 112 pixels, red, green, blue. */
public final class Aligner {
    public static final int SIDE = 112;

    /** Where the landmarks of a crop lie, as (x, y) pixel centres: ArcFace's template. */
    private static final double[] TEMPLATE = {
        38.2946, 51.6963, 73.5318, 51.5014, 56.0252, 71.7366, 41.5493, 92.3655, 70.7299, 92.2041
    };

    private Aligner() {}

    /**
     * Returns the crop of a face, black outside the picture. A face more than twice as large as the crop is first shrunk
     * by averaging whole pixels. Throws LOW_QUALITY for landmarks that give no direction.
     */
    public static byte[] crop(Frame frame, Face face) {
        return read(frame, face.landmarks, TEMPLATE, SIDE);
    }

    /** Returns by how many degrees a face leans clockwise; throws LOW_QUALITY for landmarks that give no direction. */
    static double rollDeg(Face face) {
        Similarity map = map(face.landmarks, TEMPLATE);
        return -Math.toDegrees(Math.atan2(map.b, map.a));
    }

    /** Returns a square of pixels in which points of the picture lie nearest to {@code target}. */
    static byte[] read(Frame frame, double[] source, double[] target, int side) {
        Similarity map = map(source, target);
        int shrink = (int) Math.min(1 / map.scale(), Math.min(frame.width, frame.height));
        if (shrink >= 2) {
            Frame small = Resizing.averaged(frame, shrink, shrink);
            double[] nearer = new double[source.length];
            for (int i = 0; i < nearer.length; i++) {
                nearer[i] = (source[i] + 0.5) / shrink - 0.5;
            }
            return Warp.apply(small, map(nearer, target), side, side);
        }
        return Warp.apply(frame, map, side, side);
    }

    private static Similarity map(double[] source, double[] target) {
        Similarity map = Similarity.between(source, target);
        if (map == null) {
            throw new MienException(
                    ErrorCode.LOW_QUALITY, "the landmarks of the face give no direction. " + Hint.LANDMARKS.text());
        }
        return map;
    }
}
