package mien.client.wire;

import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import com.google.gson.stream.MalformedJsonException;
import java.io.IOException;
import java.io.StringReader;
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
 * <p>Reads, by Gson, at most 1 MiB and no numbers that are not finite. Writes the canonical form: sorted keys, no spaces.
 */
public final class Json {
    private static final int MAX_BYTES = 1 << 20;
    private static final int MAX_DEPTH = 64;
    /** Which Gson's reader leaves out, and Python's refuses. */
    private static final String BYTE_ORDER_MARK = "\uFEFF";

    private Json() {}

    /** Returns the value in UTF-8 JSON; throws CORRUPT_DATA naming {@code what}. */
    public static Object parse(byte[] data, String what) {
        if (data.length > MAX_BYTES) {
            throw new MienException(ErrorCode.CORRUPT_DATA, what + " is longer than 1 MiB; fetch it again");
        }
        String text = Bytes.text(data);
        try (JsonReader reader = new JsonReader(new StringReader(text))) {
            reader.setStrictness(Strictness.STRICT);
            reader.setNestingLimit(MAX_DEPTH);
            Object value = text.startsWith(BYTE_ORDER_MARK) ? broken() : value(reader);
            return reader.peek() == JsonToken.END_DOCUMENT ? value : broken();
        } catch (IOException | IllegalStateException error) {
            throw new MienException(ErrorCode.CORRUPT_DATA, what + " is not JSON; fetch it again", error);
        } catch (NumberFormatException error) {
            throw new MienException(ErrorCode.CORRUPT_DATA, what + " holds a number that is too large", error);
        }
    }

    /** Returns the object in UTF-8 JSON, as {@link Fields}; throws CORRUPT_DATA naming {@code what}. */
    public static Fields object(byte[] data, String what) {
        return Fields.of(parse(data, what), what);
    }

    private static Object broken() throws IOException {
        throw new MalformedJsonException("the reader takes it, and Mien does not");
    }

    private static Object value(JsonReader reader) throws IOException {
        switch (reader.peek()) {
            case BEGIN_OBJECT:
                return fields(reader);
            case BEGIN_ARRAY:
                List<Object> items = new ArrayList<>();
                reader.beginArray();
                while (reader.hasNext()) {
                    items.add(value(reader));
                }
                reader.endArray();
                return items;
            case STRING:
                return reader.nextString();
            case BOOLEAN:
                return reader.nextBoolean();
            case NULL:
                reader.nextNull();
                return null;
            case NUMBER:
                String word = reader.nextString();
                return word.matches("-?[0-9]+") ? (Object) Long.parseLong(word) : (Object) finite(Double.parseDouble(word));
            default:
                return broken();
        }
    }

    private static Map<String, Object> fields(JsonReader reader) throws IOException {
        Map<String, Object> fields = new LinkedHashMap<>();
        reader.beginObject();
        while (reader.hasNext()) {
            String name = reader.nextName();
            if (fields.containsKey(name)) {
                broken();
            }
            fields.put(name, value(reader));
        }
        reader.endObject();
        return fields;
    }

    private static double finite(double value) {
        if (Double.isInfinite(value)) {
            throw new NumberFormatException("beyond what a number holds");
        }
        return value;
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
