package mien.client.vision;

import java.io.DataOutputStream;
import java.io.IOException;
import java.util.List;

/** Everything that is measured of a picture, for comparing it with Python's. */
public final class Seen {
    private Seen() {}

    /** Writes all faces of a picture, then what is made of it. */
    public static void write(FaceFinder finder, Frame frame, DataOutputStream out) throws IOException {
        List<Face> faces = finder.find(frame);
        out.writeInt(faces.size());
        for (Face face : faces) {
            write(out, face.x, face.y, face.width, face.height);
            write(out, face.landmarks);
            write(out, face.score);
        }
        Look look = new FaceReader(finder).look(frame);
        StringBuilder hints = new StringBuilder();
        for (Hint hint : look.hints) {
            hints.append(hint.code()).append(' ');
        }
        out.writeUTF(hints.toString().trim());
        byte[] crop = look.crop();
        out.writeBoolean(crop != null);
        if (crop != null) {
            out.write(crop);
            Geometry geometry = Geometry.of(frame, look.face);
            write(out, geometry.eyeDistancePx, geometry.yawDeg, geometry.pitchDeg, geometry.rollDeg);
            write(out, geometry.visible, geometry.landmarkErrorPx);
            Appearance appearance = Appearance.of(crop);
            write(out, appearance.sharpness, appearance.highlight, appearance.saturated, appearance.contrast);
        }
    }

    private static void write(DataOutputStream out, double... values) throws IOException {
        for (double value : values) {
            out.writeDouble(value);
        }
    }
}
