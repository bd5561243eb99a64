package mien.client.wire;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * JSON as plain objects: Map, List, String, Boolean, Long, Double, null.
 *
 * <p>Reads at most 1 MiB and no numbers that are not finite. Writes the canonical form: sorted keys, no spaces.
 */
public final class Json {
    private static final int MAX_BYTES = 1 << 20;
    private static final int MAX_DEPTH = 64;

    private final String text;
    private final String what;
    private int at;

    private Json(String text, String what) {
        this.text = text;
        this.what = what;
    }

    /** Returns the value in UTF-8 JSON; throws CORRUPT_DATA naming {@code what}. */
    public static Object parse(byte[] data, String what) {
        if (data.length > MAX_BYTES) {
            throw new MienException(ErrorCode.CORRUPT_DATA, what + " is longer than 1 MiB; fetch it again");
        }
        Json reader = new Json(Bytes.text(data), what);
        Object value = reader.value(0);
        reader.skipSpaces();
        if (reader.at != reader.text.length()) {
            throw reader.broken();
        }
        return value;
    }

    /** Returns the object in UTF-8 JSON, as {@link Fields}; throws CORRUPT_DATA naming {@code what}. */
    public static Fields object(byte[] data, String what) {
        return Fields.of(parse(data, what), what);
    }

    private MienException broken() {
        return new MienException(ErrorCode.CORRUPT_DATA, what + " is not JSON; fetch it again");
    }

    private Object value(int depth) {
        skipSpaces();
        if (depth > MAX_DEPTH || at >= text.length()) {
            throw broken();
        }
        switch (text.charAt(at)) {
            case '{':
                return object(depth);
            case '[':
                return list(depth);
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> fields = new LinkedHashMap<>();
        at++;
        skipSpaces();
        if (take('}')) {
            return fields;
        }
        do {
            skipSpaces();
            if (at >= text.length() || text.charAt(at) != '"') {
                throw broken();
            }
            String name = string();
            skipSpaces();
            expect(':');
            if (fields.containsKey(name)) {
                throw broken();
            }
            fields.put(name, value(depth + 1));
            skipSpaces();
        } while (take(','));
        expect('}');
        return fields;
    }

    private List<Object> list(int depth) {
        List<Object> items = new ArrayList<>();
        at++;
        skipSpaces();
        if (take(']')) {
            return items;
        }
        do {
            items.add(value(depth + 1));
            skipSpaces();
        } while (take(','));
        expect(']');
        return items;
    }

    private String string() {
        StringBuilder read = new StringBuilder();
        at++;
        while (at < text.length()) {
            char each = text.charAt(at++);
            if (each == '"') {
                return read.toString();
            }
            if (each < ' ') {
                throw broken();
            }
            read.append(each == '\\' ? escaped() : each);
        }
        throw broken();
    }

    private char escaped() {
        if (at >= text.length()) {
            throw broken();
        }
        char each = text.charAt(at++);
        int simple = "\"\\/bfnrt".indexOf(each);
        if (simple >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(simple);
        }
        if (each != 'u' || at + 4 > text.length() || !text.substring(at, at + 4).matches("[0-9a-fA-F]{4}")) {
            throw broken();
        }
        at += 4;
        return (char) Integer.parseInt(text.substring(at - 4, at), 16);
    }

    private Object number() {
        int start = at;
        while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String word = text.substring(start, at);
        if (!word.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")) {
            throw broken();
        }
        try {
            if (word.matches("-?[0-9]+")) {
                return Long.parseLong(word);
            }
            double value = Double.parseDouble(word);
            if (!Double.isInfinite(value)) {
                return value;
            }
        } catch (NumberFormatException error) {
            throw new MienException(ErrorCode.CORRUPT_DATA, what + " holds a number that is too large", error);
        }
        throw broken();
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw broken();
        }
        at += word.length();
        return value;
    }

    private void skipSpaces() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private boolean take(char wanted) {
        if (at < text.length() && text.charAt(at) == wanted) {
            at++;
            return true;
        }
        return false;
    }

    private void expect(char wanted) {
        if (!take(wanted)) {
            throw broken();
        }
    }

    // Writing

    /** Returns canonical JSON: sorted keys, no spaces; numbers are Long or Integer. */
    public static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map) {
            String separator = "";
            out.append('{');
            for (Map.Entry<?, ?> field : new TreeMap<Object, Object>((Map<?, ?>) value).entrySet()) {
                out.append(separator);
                writeString((String) field.getKey(), out);
                out.append(':');
                write(field.getValue(), out);
                separator = ",";
            }
            out.append('}');
        } else if (value instanceof List) {
            String separator = "";
            out.append('[');
            for (Object item : (List<?>) value) {
                out.append(separator);
                write(item, out);
                separator = ",";
            }
            out.append(']');
        } else if (value instanceof String) {
            writeString((String) value, out);
        } else if (value == null || value instanceof Boolean || value instanceof Long || value instanceof Integer) {
            out.append(value);
        } else {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "a number that is not whole has no canonical form here; fetch it again");
        }
    }

    /** Beyond ASCII is escaped, as in what layouts are hashed from. */
    private static void writeString(String value, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < value.length(); i++) {
            char each = value.charAt(i);
            int simple = "\"\\\b\f\n\r\t".indexOf(each);
            if (simple >= 0) {
                out.append('\\').append("\"\\bfnrt".charAt(simple));
            } else if (each < ' ' || each > '~') {
                out.append(String.format("\\u%04x", (int) each));
            } else {
                out.append(each);
            }
        }
        out.append('"');
    }
}
