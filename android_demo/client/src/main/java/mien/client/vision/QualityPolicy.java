package mien.client.vision;

/** What a face must fulfil; Python's defaults, which were measured on photographs and on renders. */
final class QualityPolicy {
    static final double MIN_SCORE = 0.75;
    static final double MIN_EYE_DISTANCE_PX = 20;
    static final double MIN_SHARPNESS = 0.32;
    static final double MIN_HIGHLIGHT = 40;
    static final double MAX_SATURATED = 0.2;
    static final double MIN_CONTRAST = 7;
    static final double MAX_YAW_DEG = 50;
    static final double MAX_PITCH_DEG = 20;
    static final double MAX_ROLL_DEG = 180;
    static final double MIN_VISIBLE = 0.9;
    static final double MAX_LANDMARK_ERROR_PX = 2;

    private QualityPolicy() {}
}
