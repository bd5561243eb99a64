package mien.client.vision;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import mien.client.MienException;

/** The one way from a picture to an aligned crop, for enrolling and verifying: find, choose, align, assess. */
public final class FaceReader {
    /** Below this score a face is looked for in the turned picture too. */
    private static final double SURE_SCORE = 0.885;

    private static final double BETTER_SCORE = 0.03;

    private final FaceFinder finder;

    public FaceReader(FaceFinder finder) {
        this.finder = finder;
    }

    /** Returns the face of the one person in a picture, or why it cannot be used. */
    public Look look(Frame frame) {
        List<Face> faces = finder.find(frame);
        if (faces.isEmpty()) {
            return unusable(frame, null, Hint.NO_FACE);
        }
        if (Face.countRelevant(faces) > 1) {
            return unusable(frame, null, Hint.MULTIPLE_FACES);
        }
        Face face = Face.largest(faces);
        Geometry geometry = Geometry.of(frame, face);
        if (geometry == null) {
            return unusable(frame, face, Hint.LANDMARKS);
        }
        byte[] crop;
        try {
            crop = Aligner.crop(frame, face);
        } catch (MienException error) {
            return unusable(frame, face, Hint.LANDMARKS);
        }
        List<Hint> hints = new ArrayList<>();
        geometry.judge(hints);
        Appearance.of(crop).judge(hints);
        if (face.score < SURE_SCORE && isTurned(frame, face)) {
            hints.remove(Hint.ROLLED);
            hints.add(0, Hint.ROLLED);
        }
        return new Look(frame, face, geometry, crop, hints);
    }

    private static Look unusable(Frame frame, Face face, Hint why) {
        return new Look(frame, face, null, null, Collections.singletonList(why));
    }

    /**
     * Returns whether the picture lies on its side or upside down: turned, it shows a face that is sure and better. The
     * detector puts the eyes of an upside-down face where its mouth is, so the landmarks cannot tell.
     */
    private boolean isTurned(Frame frame, Face face) {
        for (int quarters : new int[] {2, 1, 3}) {
            for (Face other : finder.find(frame.turned(quarters))) {
                if (other.score >= Math.max(SURE_SCORE, face.score + BETTER_SCORE)) {
                    return true;
                }
            }
        }
        return false;
    }
}
