package mien.client.model;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;

/** The one order of parameters: named tensors and one flat float32 vector. */
public final class ParameterLayout {
    private static final int MAX_ELEMENTS = 1 << 28;

    /** One named tensor: its shape, and where it lies in the vector. */
    public static final class Entry {
        public final String name;
        public final long[] shape;
        public final int offset;
        public final int size;

        Entry(String name, long[] shape, int offset, int size) {
            this.name = name;
            this.shape = shape;
            this.offset = offset;
            this.size = size;
        }
    }

    public final Map<String, Entry> entries;
    public final int size;
    /** Hash over names, shapes and kinds in order; equal ones mean interchangeable vectors. */
    public final String sha256;

    private ParameterLayout(Map<String, Entry> entries, int size, String sha256) {
        this.entries = entries;
        this.size = size;
        this.sha256 = sha256;
    }

    /** Returns the layout in a manifest's rows; throws LAYOUT_MISMATCH when it is malformed. */
    static ParameterLayout parse(List<Fields> rows) {
        Map<String, Entry> entries = new LinkedHashMap<>();
        List<Object> hashed = new ArrayList<>();
        long offset = 0;
        for (Fields row : rows) {
            String name = row.text("name");
            String kind = row.text("kind");
            List<?> dimensions = row.list("shape");
            long size = 1;
            long[] shape = new long[dimensions.size()];
            for (int i = 0; i < shape.length; i++) {
                Object dimension = dimensions.get(i);
                shape[i] = dimension instanceof Long ? (Long) dimension : 0;
                size *= shape[i];
                if (shape[i] < 1 || offset + size > MAX_ELEMENTS) {
                    throw malformed();
                }
            }
            boolean isKnown = kind.equals("parameter") || kind.equals("buffer");
            if (!isKnown || entries.put(name, new Entry(name, shape, (int) offset, (int) size)) != null) {
                throw malformed();
            }
            hashed.add(Arrays.<Object>asList(name, dimensions, kind));
            offset += size;
        }
        return new ParameterLayout(entries, (int) offset, Bytes.hex(Bytes.sha256(Bytes.utf8(Json.write(hashed)))));
    }

    private static MienException malformed() {
        return new MienException(
                ErrorCode.LAYOUT_MISMATCH, "the manifest holds a malformed layout; fetch the model again");
    }

    /**
     * Returns the part whose tensor names match any of the shell-style patterns; throws CONFIG for a pattern that
     * matches nothing, so that a typo never silently freezes a layer.
     */
    public ParameterPart part(List<String> patterns) {
        Set<String> matched = new HashSet<>();
        for (String pattern : patterns) {
            boolean any = false;
            for (String name : entries.keySet()) {
                if (Glob.matches(pattern, name)) {
                    matched.add(name);
                    any = true;
                }
            }
            if (!any) {
                throw new MienException(
                        ErrorCode.CONFIG, "trainable pattern '" + pattern + "' matches no tensor; tell the operator");
            }
        }
        List<String> names = new ArrayList<>();
        for (String name : entries.keySet()) {
            if (matched.contains(name)) {
                names.add(name);
            }
        }
        return new ParameterPart(this, names);
    }
}
