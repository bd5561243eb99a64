package mien.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.fail;

/** Asserts on errors by their codes. */
public final class Raised {
    private Raised() {}

    /** Fails unless {@code action} throws an error of that code; returns its message. */
    public static String by(ErrorCode code, String what, Runnable action) {
        try {
            action.run();
        } catch (MienException error) {
            assertEquals(what + ": " + error.getMessage(), code, error.code());
            return error.getMessage();
        }
        fail(what + " was not refused");
        return "";
    }
}
