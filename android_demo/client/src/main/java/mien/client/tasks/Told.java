package mien.client.tasks;

import java.security.MessageDigest;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;
import mien.client.wire.Safetensors;

/** What a method's server tells its devices, the same to all devices of a round: finite numbers, by name. */
public final class Told {
    private static final String WHAT = "what the method tells this phone";
    /** What fits into an assignment, and what numbers beside a contribution's elements may take. */
    private static final long INLINE_BYTES = 256 * 1024;

    private static final long MARGIN_BYTES = 64 * 1024;

    /** Numbers with their shape. */
    private static final class Array {
        final long[] shape;
        final float[] values;

        Array(Safetensors.Tensor tensor) {
            shape = tensor.shape;
            values = tensor.floats();
        }

        /** Returns whether it holds numbers, all finite; only a list of rows may be empty. */
        boolean canBe() {
            boolean isEmptyList = shape.length > 1 && shape[0] == 0;
            for (int axis = 1; axis < shape.length; axis++) {
                isEmptyList &= shape[axis] > 0;
            }
            return (values.length > 0 || isEmptyList) && Bytes.isFinite(values);
        }

        /** Returns the shape in Python's words, which are hashed: one number has a comma behind it. */
        String form() {
            StringBuilder form = new StringBuilder();
            for (long length : shape) {
                form.append(form.length() == 0 ? "" : ", ").append(length);
            }
            return "(" + form + (shape.length == 1 ? ",)" : ")");
        }
    }

    private final Map<String, Array> arrays = new HashMap<>();

    private Told() {}

    /** Returns the most bytes that a device takes: about as many as it sends. */
    public static long mostBytes(ContributionLayout layout) {
        return Math.max(INLINE_BYTES, 4L * layout.size + MARGIN_BYTES);
    }

    /**
     * Returns what is told in the blobs, a later one's arrays over an earlier one's. Throws VIOLATION for an array that is not
     * one of {@code names}, CORRUPT_DATA for one that holds none or no finite numbers, and for more than {@code most} bytes.
     */
    public static Told parse(List<byte[]> blobs, List<String> names, long most) {
        Told told = new Told();
        long bytes = 0;
        for (byte[] blob : blobs) {
            Safetensors given = Safetensors.parse(blob, WHAT);
            for (String name : given.names()) {
                if (!names.contains(name)) {
                    throw new MienException(
                            ErrorCode.VIOLATION,
                            "the server told what phones of this task are not told, which could be there to read one phone's"
                                    + " update out of the sum; leave the round, and tell the operator");
                }
                Array array = new Array(given.get(name, "F32"));
                if (!array.canBe()) {
                    throw otherForm();
                }
                told.arrays.put(name, array);
                bytes += 4L * array.values.length;
            }
        }
        if (bytes > most) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "the server told more than this task's method has use for; leave the round, tell the operator");
        }
        return told;
    }

    private static MienException otherForm() {
        return new MienException(
                ErrorCode.CORRUPT_DATA,
                "the server told numbers in another form than this task's; leave the round, and tell the operator");
    }

    /** Returns a vector, null where it is absent; throws CORRUPT_DATA for one of another length. */
    float[] vector(String name, int size) {
        Array array = arrays.get(name);
        if (array != null && (array.shape.length != 1 || array.values.length != size)) {
            throw otherForm();
        }
        return array == null ? null : array.values;
    }

    /** Returns rows of a width, null where they are absent; throws CORRUPT_DATA for another form. */
    float[][] rows(String name, int width) {
        Array array = arrays.get(name);
        if (array == null) {
            return null;
        }
        if (array.shape.length != 2 || array.shape[1] != width) {
            throw otherForm();
        }
        return Rows.rows(new Tensor(array.values, array.shape), width);
    }

    /** Returns a vector, zeros where it is absent; throws as {@link #vector}. */
    float[] vectorOrZeros(String name, int size) {
        float[] values = vector(name, size);
        return values == null ? new float[size] : values;
    }

    /** Returns a vector of one number, 0 where it is absent. */
    int number(String name) {
        float[] values = vector(name, 1);
        return values == null ? 0 : (int) values[0];
    }

    /** Returns the hash of all that is told, which the round's keys are bound to; empty where nothing is. */
    public byte[] words(List<String> names) {
        if (arrays.isEmpty()) {
            return new byte[0];
        }
        MessageDigest digest = Bytes.sha256();
        for (String name : names) {
            Array array = arrays.get(name);
            if (array != null) {
                digest.update(Bytes.utf8(name + " " + array.form() + "\n"));
                digest.update(Bytes.littleEndian(array.values));
            }
        }
        return digest.digest();
    }
}
