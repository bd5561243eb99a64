package mien.client.enrol;

/** What a person agreed to before the camera looked at them: to be enrolled, and perhaps that their pictures train. */
public final class Consent {
    /** When they agreed, milliseconds since 1970. */
    public final long agreedUnixMs;
    /** Whether their pictures may train the model. */
    public final boolean trains;

    public Consent(long agreedUnixMs, boolean trains) {
        this.agreedUnixMs = agreedUnixMs;
        this.trains = trains;
    }
}
