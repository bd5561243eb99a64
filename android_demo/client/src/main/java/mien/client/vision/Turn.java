package mien.client.vision;

import mien.client.ErrorCode;
import mien.client.MienException;

/** Where a pixel of the upright picture lies in a camera's. */
final class Turn {
    private final int rotation;
    private final boolean isMirrored;
    private final int lastX;
    private final int lastY;

    private Turn(int rotation, boolean isMirrored, int lastX, int lastY) {
        this.rotation = rotation;
        this.isMirrored = isMirrored;
        this.lastX = lastX;
        this.lastY = lastY;
    }

    /**
     * Returns the turn of a picture of this size that makes it upright: {@code rotation} degrees clockwise, a multiple of
     * 90, then from left to right where it is mirrored. Throws CONFIG for other angles.
     */
    static Turn of(int rotation, boolean isMirrored, int width, int height) {
        if (rotation % 90 != 0) {
            throw new MienException(
                    ErrorCode.CONFIG, "a picture cannot be turned by " + rotation + " degrees; give 0, 90, 180 or 270");
        }
        return new Turn(Math.floorMod(rotation, 360), isMirrored, width - 1, height - 1);
    }

    boolean swapsSides() {
        return rotation % 180 != 0;
    }

    /** Returns the column in the camera's picture of an upright pixel. */
    int x(int x, int y) {
        int column = isMirrored ? (swapsSides() ? lastY : lastX) - x : x;
        switch (rotation) {
            case 0:
                return column;
            case 90:
                return y;
            case 180:
                return lastX - column;
            default:
                return lastX - y;
        }
    }

    /** Returns the row in the camera's picture of an upright pixel. */
    int y(int x, int y) {
        int column = isMirrored ? (swapsSides() ? lastY : lastX) - x : x;
        switch (rotation) {
            case 0:
                return y;
            case 90:
                return lastY - column;
            case 180:
                return lastY - y;
            default:
                return column;
        }
    }
}
