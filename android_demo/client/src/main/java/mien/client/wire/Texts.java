package mien.client.wire;

import mien.client.ErrorCode;
import mien.client.MienException;

/** Texts that others send, held to a length when they are read, so that nothing behind has to expect long ones. */
public final class Texts {
    /** In characters; nobody reads more, and no name is as long. */
    public static final int MOST = 1_000;

    private Texts() {}

    /** Returns a text that people read, without its end where it is too long. */
    public static String cut(String text) {
        return text.substring(0, Math.min(MOST, text.length()));
    }

    /** Returns a text that names something; throws CORRUPT_DATA where it is too long, for then it names nothing here. */
    public static String name(String text, String what) {
        if (text.length() > MOST) {
            throw new MienException(ErrorCode.CORRUPT_DATA, what + " is too long; tell the operator");
        }
        return text;
    }
}
