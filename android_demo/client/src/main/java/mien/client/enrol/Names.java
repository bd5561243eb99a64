package mien.client.enrol;

import java.text.Normalizer;
import mien.client.ErrorCode;
import mien.client.MienException;

/** People's names as they are stored. */
final class Names {
    private static final int MAX_LENGTH = 80;

    private Names() {}

    /** Returns a name in NFC, without outer spaces; throws CONFIG for what is no name. */
    static String clean(String name) {
        String clean = Normalizer.normalize(name, Normalizer.Form.NFC).trim();
        boolean isPrintable = true;
        for (int i = 0; i < clean.length(); i += Character.charCount(clean.codePointAt(i))) {
            isPrintable &= isPrintable(clean.codePointAt(i));
        }
        if (clean.isEmpty() || clean.codePointCount(0, clean.length()) > MAX_LENGTH || !isPrintable) {
            throw new MienException(
                    ErrorCode.CONFIG, "a name needs 1-" + MAX_LENGTH + " printable characters; choose another");
        }
        return clean;
    }

    private static boolean isPrintable(int point) {
        switch (Character.getType(point)) {
            case Character.CONTROL:
            case Character.FORMAT:
            case Character.SURROGATE:
            case Character.PRIVATE_USE:
            case Character.UNASSIGNED:
            case Character.LINE_SEPARATOR:
            case Character.PARAGRAPH_SEPARATOR:
                return false;
            case Character.SPACE_SEPARATOR:
                return point == ' ';
            default:
                return true;
        }
    }
}
