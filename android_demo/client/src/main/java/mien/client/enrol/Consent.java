package mien.client.enrol;

/** What a person agreed to before the camera looked at them: to be enrolled, and perhaps that their pictures train. */
public enum Consent {
    /** Recognising them, on this device alone. */
    RECOGNISE,
    /** That, and training the model with their pictures. */
    RECOGNISE_AND_TRAIN;

    /** Returns whether pictures may train, too. */
    public boolean trains() {
        return this == RECOGNISE_AND_TRAIN;
    }
}
