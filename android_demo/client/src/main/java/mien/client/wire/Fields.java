package mien.client.wire;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * The fields of a JSON object, each asked for with its type.
 *
 * <p>{@link #end} throws VERSION for a field that nobody asked for: a newer program's field may change what all others
 * mean, so it is never passed over.
 */
public final class Fields {
    private final Map<?, ?> values;
    private final String what;
    private final Set<String> asked = new LinkedHashSet<>();

    private Fields(Map<?, ?> values, String what) {
        this.values = values;
        this.what = what;
    }

    /** Returns a JSON object's fields; throws CORRUPT_DATA, which names what it is of, for anything else. */
    public static Fields of(Object value, String what) {
        if (!(value instanceof Map)) {
            throw new MienException(ErrorCode.CORRUPT_DATA, what + " is not an object; fetch it again");
        }
        return new Fields((Map<?, ?>) value, what);
    }

    /** Returns whether a field is there and not null. */
    public boolean has(String name) {
        asked.add(name);
        return values.get(name) != null;
    }

    /** Returns a field as it was parsed, null where it is missing. */
    public Object raw(String name) {
        asked.add(name);
        return values.get(name);
    }

    /** Returns a text; throws CORRUPT_DATA where it is missing or no text. */
    public String text(String name) {
        return required(name, String.class);
    }

    /** Returns a text, or another where the field is missing. */
    public String text(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    /** Returns a whole number; throws CORRUPT_DATA where it is missing or none. */
    public long number(String name) {
        return required(name, Long.class);
    }

    /** Returns a whole number, or another where the field is missing. */
    public long number(String name, long otherwise) {
        return has(name) ? number(name) : otherwise;
    }

    /** Returns a number within int's range, at least {@code least}. */
    public int count(String name, int least) {
        long value = number(name);
        if (value < least || value > Integer.MAX_VALUE) {
            throw new MienException(ErrorCode.CORRUPT_DATA, what + ": " + name + " is " + value + ", which cannot be");
        }
        return (int) value;
    }

    /** Returns a number; throws CORRUPT_DATA where it is missing or none. */
    public double real(String name) {
        Number value = required(name, Number.class);
        return value.doubleValue();
    }

    /** Returns a number, or another where the field is missing. */
    public double real(String name, double otherwise) {
        return has(name) ? real(name) : otherwise;
    }

    /** Returns a truth value; throws CORRUPT_DATA where it is missing or none. */
    public boolean flag(String name) {
        return required(name, Boolean.class);
    }

    /** Returns an object's fields; throws CORRUPT_DATA where it is missing or none. */
    public Fields object(String name) {
        return Fields.of(raw(name), what + "." + name);
    }

    /** Returns a list; throws CORRUPT_DATA where it is missing or none. */
    public List<?> list(String name) {
        return required(name, List.class);
    }

    /** Returns a list of texts; throws CORRUPT_DATA where it is missing or holds anything else. */
    public List<String> texts(String name) {
        List<String> found = new ArrayList<>();
        for (Object item : list(name)) {
            if (!(item instanceof String)) {
                throw wrong(name);
            }
            found.add((String) item);
        }
        return found;
    }

    /** Returns a list of objects; throws CORRUPT_DATA where it is missing or holds anything else. */
    public List<Fields> objects(String name) {
        List<Fields> found = new ArrayList<>();
        for (Object item : list(name)) {
            found.add(Fields.of(item, what + "." + name));
        }
        return found;
    }

    /** Throws VERSION where a field was not asked for. */
    public void end() {
        for (Object name : values.keySet()) {
            if (!asked.contains(name)) {
                throw new MienException(
                        ErrorCode.VERSION,
                        what + " has the field " + Texts.cut(name.toString()) + ", unknown to this program; upgrade it");
            }
        }
    }

    private <T> T required(String name, Class<T> type) {
        Object value = raw(name);
        if (!type.isInstance(value)) {
            throw wrong(name);
        }
        return type.cast(value);
    }

    private MienException wrong(String name) {
        return new MienException(
                ErrorCode.CORRUPT_DATA, what + " lacks the field " + name + ", or it is of another kind; fetch it again");
    }
}
