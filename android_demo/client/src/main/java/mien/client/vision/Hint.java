package mien.client.vision;

/** Why a picture cannot be used, and what the person before the camera can do; the words are Python's. */
public enum Hint {
    NO_FACE("no_face", "No face found; take another picture, nearer and better lit."),
    MULTIPLE_FACES("multiple_faces", "Several faces found; take a picture of one person."),
    TOO_SMALL("too_small", "The face is too small: move closer."),
    TURNED("turned", "The head is turned away: look towards the camera."),
    PITCHED("pitched", "The head is raised or lowered: hold the camera at eye height."),
    ROLLED("rolled", "The head is not upright: hold head and camera upright, or turn the picture."),
    UNCLEAR("unclear", "The face is not clear to see: take away what covers it, such as a mask, hand or sunglasses."),
    LANDMARKS(
            "landmarks",
            "Eyes, nose and mouth are not where a face has them: look at the camera with nothing before it."),
    CUT_OFF("cut_off", "The face is cut off by the edge: move it into the middle of the picture."),
    BLURRED("blurred", "The face is blurred: hold still and let the camera focus."),
    TOO_DARK("too_dark", "It is too dark: turn on a light or face a window."),
    TOO_BRIGHT("too_bright", "It is too bright: step out of the direct light."),
    LOW_CONTRAST("low_contrast", "The face is washed out: wipe the lens and avoid light from behind.");

    private final String code;
    private final String text;

    Hint(String code, String text) {
        this.code = code;
        this.text = text;
    }

    /** Returns the stable word. */
    public String code() {
        return code;
    }

    /** Returns the sentence to show, in English. */
    public String text() {
        return text;
    }
}
