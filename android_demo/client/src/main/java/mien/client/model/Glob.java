package mien.client.model;

import java.util.regex.Pattern;

/** Shell-style patterns as tasks use them: *, ? and [characters]; letters' case counts. */
final class Glob {
    private Glob() {}

    static boolean matches(String pattern, String name) {
        return Pattern.compile(regex(pattern), Pattern.DOTALL).matcher(name).matches();
    }

    private static String regex(String pattern) {
        StringBuilder regex = new StringBuilder();
        for (int at = 0; at < pattern.length(); at++) {
            char each = pattern.charAt(at);
            int end = each == '[' ? pattern.indexOf(']', at + 2) : -1;
            if (each == '*') {
                regex.append(".*");
            } else if (each == '?') {
                regex.append('.');
            } else if (end > 0) {
                String inside = pattern.substring(at + 1, end).replace("\\", "\\\\").replace("[", "\\[");
                regex.append('[').append(inside.startsWith("!") ? "^" + inside.substring(1) : inside).append(']');
                at = end;
            } else {
                regex.append(Pattern.quote(String.valueOf(each)));
            }
        }
        return regex.toString();
    }
}
