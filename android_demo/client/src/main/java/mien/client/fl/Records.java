package mien.client.fl;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;
import mien.client.wire.Texts;

/** How what a device keeps becomes bytes, and how nothing that was damaged is taken for it. */
final class Records {
    static final int MOST = 10_000;

    /** Writes a record. */
    interface Writer {
        void to(DataOutputStream out) throws IOException;
    }

    /** Reads a record. */
    interface Reader<T> {
        T from(DataInputStream in) throws IOException;
    }

    private Records() {}

    /** Writes a text, without its end where it is longer than a record holds: 65,535 bytes, three a character at most. */
    static void writeText(DataOutputStream out, String text) throws IOException {
        out.writeUTF(Texts.cut(text));
    }

    static byte[] bytes(Writer writer) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            writer.to(out);
        } catch (IOException error) {
            throw new IllegalStateException("memory can be written to", error);
        }
        return bytes.toByteArray();
    }

    /** Returns what a record holds; throws CORRUPT_DATA for one of another form, or that is longer. */
    static <T> T parse(byte[] record, Reader<T> reader) {
        try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(record))) {
            T parsed = reader.from(in);
            require(in.available() == 0);
            return parsed;
        } catch (IOException error) {
            throw damaged(error);
        }
    }

    static void write(DataOutputStream out, byte[] data) throws IOException {
        out.writeInt(data.length);
        out.write(data);
    }

    static byte[] read(DataInputStream in) throws IOException {
        int length = in.readInt();
        require(length >= 0 && length <= in.available());
        byte[] data = new byte[length];
        in.readFully(data);
        return data;
    }

    static int count(DataInputStream in) throws IOException {
        int count = in.readInt();
        require(count >= 0 && count <= MOST);
        return count;
    }

    static void write(DataOutputStream out, Map<String, Tensor> tensors) throws IOException {
        out.writeInt(tensors.size());
        for (Map.Entry<String, Tensor> each : tensors.entrySet()) {
            out.writeUTF(each.getKey());
            out.writeInt(each.getValue().shape.length);
            for (long dimension : each.getValue().shape) {
                out.writeLong(dimension);
            }
            write(out, Bytes.littleEndian(each.getValue().values));
        }
    }

    static Map<String, Tensor> readTensors(DataInputStream in) throws IOException {
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (int left = count(in); left > 0; left--) {
            String name = in.readUTF();
            int rank = in.readInt();
            require(rank >= 0 && rank <= 8);
            long[] shape = new long[rank];
            long size = 1;
            for (int axis = 0; axis < rank; axis++) {
                shape[axis] = in.readLong();
                require(shape[axis] >= 0 && shape[axis] <= Integer.MAX_VALUE);
                size *= Math.max(1, shape[axis]);
                require(size <= Integer.MAX_VALUE);
            }
            tensors.put(name, new Tensor(Bytes.floats(read(in)), shape));
        }
        return tensors;
    }

    static void require(boolean holds) {
        if (!holds) {
            throw damaged(null);
        }
    }

    private static MienException damaged(Throwable cause) {
        return new MienException(
                ErrorCode.CORRUPT_DATA, "a stored record is of another form; upgrade this program, or wipe and enrol", cause);
    }
}
