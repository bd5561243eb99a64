package mien.client.vision;

import java.util.Collections;
import java.util.List;

/** What one picture shows: a face that can be used, or why none can. */
public final class Look {
    /** Why it cannot be used, the most useful first; none where it can. */
    public final List<Hint> hints;

    /** The picture itself. */
    public final Frame frame;

    /** The face that is meant; null where there is none, or more than one. */
    public final Face face;

    private final Geometry geometry;
    private final byte[] crop;

    Look(Frame frame, Face face, Geometry geometry, byte[] crop, List<Hint> hints) {
        this.frame = frame;
        this.face = face;
        this.geometry = geometry;
        this.crop = crop;
        this.hints = Collections.unmodifiableList(hints);
    }

    /** Returns whether the crop may be used. */
    public boolean isGood() {
        return hints.isEmpty();
    }

    /** Returns the aligned crop (112, 112, 3) RGB; null where no face is meant. It is biometric: keep it sealed only. */
    public byte[] crop() {
        return crop == null ? null : crop.clone();
    }

    /** Returns how far the head is turned towards the picture's right, in degrees; 0 where no face is meant. */
    public double yawDeg() {
        return geometry == null ? 0 : geometry.yawDeg;
    }

    @Override
    public String toString() {
        return "Look(" + hints + ")";
    }
}
