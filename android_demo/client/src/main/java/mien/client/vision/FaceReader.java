package mien.client.vision;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import mien.client.MienException;

/** The one way from a picture to an aligned crop, for enrolling and verifying: find, choose, align, assess. */
public final class FaceReader {
    private final FaceFinder finder;

    /** Reads faces that a detector finds. */
    public FaceReader(FaceFinder finder) {
        this.finder = finder;
    }

    /** Returns the face of the one person in a picture, or why it cannot be used. */
    public Look look(Frame frame) {
        List<Face> faces = finder.find(frame);
        faces = faces.isEmpty() ? foundTurned(frame) : faces;
        if (faces.isEmpty()) {
            return unusable(frame, null, Hint.NO_FACE);
        }
        if (Face.countRelevant(faces) > 1) {
            return unusable(frame, null, Hint.MULTIPLE_FACES);
        }
        Face found = Face.largest(faces);
        Face upright = Upright.set(frame, found, finder);
        Face face = upright == null ? found : upright;
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
        if (upright == null) {
            hints.remove(Hint.ROLLED);
            hints.add(0, Hint.ROLLED);
        }
        return new Look(frame, face, geometry, crop, hints);
    }

    private static Look unusable(Frame frame, Face face, Hint why) {
        return new Look(frame, face, null, null, Collections.singletonList(why));
    }

    /** Returns faces that a search finds in the picture turned by quarters: YuNet misses every fifth face on its side. */
    private List<Face> foundTurned(Frame frame) {
        List<Face> faces = new ArrayList<>();
        if (Math.min(frame.width, frame.height) < YuNet.MIN_SIDE) {
            return faces;
        }
        Frame small = YuNet.resized(frame);
        for (int quarters : new int[] {1, 3, 2}) {
            for (Face face : finder.search(small.turned(quarters))) {
                faces.add(face.turnedBack(quarters, small).unscaled(small, frame));
            }
            if (!faces.isEmpty()) {
                break;
            }
        }
        return faces;
    }
}
