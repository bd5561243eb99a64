package mien.client.enrol;

import mien.client.vision.Face;
import mien.client.vision.Frame;

/**
 * Where a check against presentation attacks is plugged in. None comes with this program, and none is claimed.
 *
 * <p>A recogniser compares faces; a photograph of a face is one. A check is taken only with a measured report.
 */
public interface PadCheck {
    /** Returns what this check was measured to do, at the threshold that decides. */
    PadReport report();

    /** Returns how much a face in a picture looks like a living one. */
    double score(Frame frame, Face face);
}
