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

    /** Returns a name to be put into a sentence: one that is written from right to left turns nothing around it. */
    public static String isolated(String name) {
        boolean turns = name.codePoints().map(Character::getDirectionality).anyMatch(Texts::isFromRight);
        return turns ? "\u2068" + name + "\u2069" : name;
    }

    private static boolean isFromRight(int direction) {
        return direction == Character.DIRECTIONALITY_RIGHT_TO_LEFT
                || direction == Character.DIRECTIONALITY_RIGHT_TO_LEFT_ARABIC
                || direction == Character.DIRECTIONALITY_ARABIC_NUMBER;
    }
}
