package mien.client.model;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.Map;
import mien.client.wire.Bytes;

/**
 * A model's parameters where they lie, which is in the model's file: the system reads what is used of it, and an engine
 * takes it from there, so that none of them is on Java's heap. A part may be changed, in memory of its own.
 */
public final class Parameters {
    private final ParameterLayout layout;
    private final ByteBuffer stored;
    private final Map<String, FloatBuffer> changed = new HashMap<>();

    /** Takes parameters as little-endian float32 in the layout's order; a direct or mapped buffer is never copied. */
    public Parameters(ParameterLayout layout, ByteBuffer stored) {
        if (stored.remaining() != 4L * layout.size) {
            throw new IllegalArgumentException("there are as many parameters as the layout says");
        }
        this.layout = layout;
        this.stored = stored;
    }

    private ByteBuffer stored() {
        return stored.duplicate().order(ByteOrder.LITTLE_ENDIAN);
    }

    private FloatBuffer stored(int offset, int size) {
        FloatBuffer all = stored().asFloatBuffer();
        all.position(offset).limit(offset + size);
        return all.slice();
    }

    /** Returns a tensor's numbers. */
    public FloatBuffer tensor(String name) {
        ParameterLayout.Entry entry = layout.entries.get(name);
        FloatBuffer own = changed.get(name);
        return own == null ? stored(entry.offset, entry.size) : own.duplicate();
    }

    /** Returns a copy of a part's numbers, end to end. */
    public float[] gather(ParameterPart part) {
        float[] values = new float[part.size];
        int at = 0;
        for (String name : part.names) {
            FloatBuffer tensor = tensor(name);
            int size = tensor.remaining();
            tensor.get(values, at, size);
            at += size;
        }
        return values;
    }

    /** Returns these parameters with a part's numbers changed, given end to end; only the part is copied. */
    public Parameters with(ParameterPart part, float[] values) {
        Parameters other = new Parameters(layout, stored);
        other.changed.putAll(changed);
        FloatBuffer own = ByteBuffer.allocateDirect(4 * part.size).order(ByteOrder.nativeOrder()).asFloatBuffer();
        own.put(values);
        int at = 0;
        for (String name : part.names) {
            int end = at + layout.entries.get(name).size;
            own.limit(end).position(at);
            other.changed.put(name, own.slice());
            at = end;
        }
        return other;
    }

    /** Returns the content address of a model whose parameters are these as stored: sha256(layout hash, parameters). */
    String modelId() {
        MessageDigest digest = Bytes.sha256();
        digest.update(Bytes.unhex(layout.sha256));
        digest.update(stored());
        return Bytes.hex(digest.digest());
    }

    /** Returns whether no parameter as stored is NaN or infinite. */
    boolean isFinite() {
        FloatBuffer all = stored(0, layout.size);
        for (int i = 0; i < layout.size; i++) {
            if (!(Math.abs(all.get(i)) <= Float.MAX_VALUE)) {
                return false;
            }
        }
        return true;
    }

    @Override
    public String toString() {
        return "Parameters(" + layout.size + ")";
    }
}
