package mien.client.enrol;

import java.text.Normalizer;
import mien.client.ErrorCode;
import mien.client.MienException;

/** People's names as they are stored; mien/protocol/names.py says why. */
final class Names {
    private static final int MAX_LENGTH = 80;
    private static final String UNSEEN = "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u034f";

    private Names() {}

    /** Returns a name in NFC, with single spaces and joiners inside words alone; throws CONFIG for what is no name. */
    static String clean(String name) {
        int[] points = Normalizer.normalize(name, Normalizer.Form.NFC).codePoints().toArray();
        int length = 0;
        for (int point : points) {
            if (!isOfALine(point)) {
                throw refused();
            }
            if (Character.getType(point) == Character.SPACE_SEPARATOR) {
                points[length++] = ' ';
            } else if (isJoiner(point) || (Character.getType(point) != Character.FORMAT && UNSEEN.indexOf(point) < 0)) {
                points[length++] = point;
            }
        }
        StringBuilder joined = new StringBuilder();
        for (int i = 0; i < length; i++) {
            boolean between = i > 0 && joins(points[i - 1]) && i + 1 < length && joins(points[i + 1]);
            if (!isJoiner(points[i]) || between) {
                joined.appendCodePoint(points[i]);
            }
        }
        String clean = Normalizer.normalize(joined.toString().replaceAll(" +", " ").trim(), Normalizer.Form.NFC);
        if (clean.codePoints().allMatch(Names::isMark) || clean.codePointCount(0, clean.length()) > MAX_LENGTH) {
            throw refused();
        }
        return clean;
    }

    private static MienException refused() {
        return new MienException(
                ErrorCode.CONFIG, "a name needs 1-" + MAX_LENGTH + " printable characters; choose another");
    }

    private static boolean isJoiner(int point) {
        return point == 0x200c || point == 0x200d;
    }

    private static boolean joins(int point) {
        return Character.isLetter(point) || isMark(point);
    }

    private static boolean isMark(int point) {
        int type = Character.getType(point);
        return type == Character.NON_SPACING_MARK
                || type == Character.COMBINING_SPACING_MARK
                || type == Character.ENCLOSING_MARK;
    }

    private static boolean isOfALine(int point) {
        switch (Character.getType(point)) {
            case Character.CONTROL:
            case Character.SURROGATE:
            case Character.PRIVATE_USE:
            case Character.UNASSIGNED:
            case Character.LINE_SEPARATOR:
            case Character.PARAGRAPH_SEPARATOR:
                return false;
            default:
                return true;
        }
    }
}
