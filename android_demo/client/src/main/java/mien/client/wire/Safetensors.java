package mien.client.wire;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Named tensors as one blob: a header of JSON behind its length (u64, little-endian), then the tensors' bytes. */
public final class Safetensors {
    private static final String METADATA = "__metadata__";
    private static final int HEAD = 8;

    /** One tensor: type word, shape, and its bytes where they lie in the blob. */
    public static final class Tensor {
        public final String type;
        public final long[] shape;
        public final ByteBuffer data;

        Tensor(String type, long[] shape, ByteBuffer data) {
            this.type = type;
            this.shape = shape;
            this.data = data;
        }

        /** Returns the numbers of a tensor of type F32. */
        public float[] floats() {
            float[] values = new float[data.remaining() / 4];
            numbers().asFloatBuffer().get(values);
            return values;
        }

        /** Returns the bytes from their beginning, in their order. */
        public ByteBuffer numbers() {
            return data.duplicate().order(ByteOrder.LITTLE_ENDIAN);
        }
    }

    private final Map<String, Tensor> tensors = new HashMap<>();
    private final String what;

    private Safetensors(String what) {
        this.what = what;
    }

    /** Returns the tensors of a blob; throws CORRUPT_DATA naming {@code what}. */
    public static Safetensors parse(byte[] data, String what) {
        return parse(ByteBuffer.wrap(data), what);
    }

    /** Returns the tensors of a blob as {@link #parse(byte[], String)}; of a mapped file nothing but the header is copied. */
    public static Safetensors parse(ByteBuffer blob, String what) {
        Safetensors parsed = new Safetensors(what);
        ByteBuffer data = blob.slice().order(ByteOrder.LITTLE_ENDIAN);
        if (data.limit() == 0) {
            return parsed;
        }
        long length = data.limit() < HEAD ? -1 : data.getLong();
        if (length < 2 || length > data.limit() - HEAD) {
            throw parsed.damaged();
        }
        int start = HEAD + (int) length;
        byte[] json = new byte[(int) length];
        data.get(json);
        Map<?, ?> header = header(json, what);
        List<int[]> ranges = new ArrayList<>();
        for (Map.Entry<?, ?> each : header.entrySet()) {
            if (!METADATA.equals(each.getKey())) {
                Fields fields = Fields.of(each.getValue(), what);
                parsed.tensors.put((String) each.getKey(), parsed.tensor(fields, data, start));
                ranges.add(range(fields));
            }
        }
        parsed.checkWhole(ranges, data.limit() - start);
        return parsed;
    }

    private static Map<?, ?> header(byte[] json, String what) {
        Object value = Json.parse(json, what);
        if (!(value instanceof Map)) {
            throw new Safetensors(what).damaged();
        }
        return (Map<?, ?>) value;
    }

    private Tensor tensor(Fields fields, ByteBuffer data, int start) {
        List<?> offsets = fields.list("data_offsets");
        List<?> dimensions = fields.list("shape");
        String type = fields.text("dtype");
        long elements = 1;
        long[] shape = new long[dimensions.size()];
        for (int i = 0; i < shape.length; i++) {
            shape[i] = dimensions.get(i) instanceof Long ? (Long) dimensions.get(i) : -1;
            if (shape[i] < 0 || shape[i] > data.limit()) { // so that the product below is of two ints
                throw damaged();
            }
            elements *= shape[i];
            if (elements > data.limit()) {
                throw damaged();
            }
        }
        boolean numbers = offsets.size() == 2 && offsets.get(0) instanceof Long && offsets.get(1) instanceof Long;
        long begin = numbers ? (Long) offsets.get(0) : -1;
        long end = numbers ? (Long) offsets.get(1) : -1;
        if (begin < 0 || end < begin || end > data.limit() - start || end - begin != elements * width(type)) {
            throw damaged();
        }
        ByteBuffer own = data.duplicate();
        own.limit(start + (int) end).position(start + (int) begin);
        return new Tensor(type, shape, own.slice());
    }

    private static int[] range(Fields fields) {
        List<?> offsets = fields.list("data_offsets");
        return new int[] {(int) (long) (Long) offsets.get(0), (int) (long) (Long) offsets.get(1)};
    }

    /**
     * Throws where a byte belongs to two tensors or to none, and where a tensor without any lies inside another: what one
     * program would read otherwise than another, or refuse.
     */
    private void checkWhole(List<int[]> ranges, int size) {
        ranges.sort((one, other) -> one[0] == other[0] ? Integer.compare(one[1], other[1]) : Integer.compare(one[0], other[0]));
        int end = 0;
        for (int[] each : ranges) {
            if (each[0] != end) {
                throw damaged();
            }
            end = each[1];
        }
        if (end != size) {
            throw damaged();
        }
    }

    private int width(String type) {
        switch (type) {
            case "U8":
                return 1;
            case "F32":
                return 4;
            case "I64":
                return 8;
            default:
                throw damaged();
        }
    }

    /** Returns the names of all tensors. */
    public Set<String> names() {
        return tensors.keySet();
    }

    /** Returns a tensor of that type; throws CORRUPT_DATA where it is missing or of another. */
    public Tensor get(String name, String type) {
        Tensor tensor = tensors.get(name);
        if (tensor == null || !tensor.type.equals(type)) {
            throw damaged();
        }
        return tensor;
    }

    private MienException damaged() {
        return new MienException(ErrorCode.CORRUPT_DATA, what + " is damaged; fetch it again");
    }
}
