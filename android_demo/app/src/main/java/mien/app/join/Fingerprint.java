package mien.app.join;

/** A fingerprint, or its code, as people compare it: groups of four, so that the eye keeps its place. */
public final class Fingerprint {
    private static final int GROUP = 4;
    private static final int GROUPS_A_LINE = 4;

    private Fingerprint() {}

    /** Returns a fingerprint of hex digits in groups, four to a line. */
    public static String grouped(String hex) {
        StringBuilder text = new StringBuilder();
        for (int at = 0; at < hex.length(); at += GROUP) {
            if (at > 0) {
                text.append(at % (GROUP * GROUPS_A_LINE) == 0 ? '\n' : ' ');
            }
            text.append(hex, at, Math.min(at + GROUP, hex.length()));
        }
        return text.toString();
    }

    /** Returns a code of four groups in two lines of one length, wherever a narrow screen would break it. */
    static String inTwoLines(String code) {
        int middle = code.indexOf(' ', code.length() / 2);
        return code.substring(0, middle) + '\n' + code.substring(middle + 1);
    }
}
