package mien.client.enrol;

/** How a person holds their head for one picture of an enrolment. Pictures must not be mirrored. */
public enum Pose {
    STRAIGHT,
    /** Turned towards their own left, the right of the picture. */
    LEFT,
    /** Turned towards their own right. */
    RIGHT;

    /** From this angle on a head counts as turned. */
    static final double TURNED_DEG = 12;

    /** Returns the pose of the picture of that number, from 0 on: each in turn. */
    static Pose of(int number) {
        return values()[number % values().length];
    }

    /** Returns whether a head turned so far towards the picture's right is held so. */
    boolean isHeld(double yawDeg) {
        switch (this) {
            case LEFT:
                return yawDeg > TURNED_DEG;
            case RIGHT:
                return yawDeg < -TURNED_DEG;
            default:
                return Math.abs(yawDeg) <= TURNED_DEG;
        }
    }
}
