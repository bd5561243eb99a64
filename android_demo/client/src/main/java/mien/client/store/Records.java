package mien.client.store;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Texts;

/** How what a device keeps becomes bytes, and how nothing that was damaged is taken for it. */
public final class Records {
    private static final int MOST = 10_000;

    /** Writes a record. */
    public interface Writer {
        /** Writes a record's fields. */
        void to(DataOutputStream out) throws IOException;
    }

    /** Reads a record. */
    public interface Reader<T> {
        /** Reads them in the same order. */
        T from(DataInputStream in) throws IOException;
    }

    private Records() {}

    /** Writes a text, without its end where it is longer than a record holds: 65,535 bytes, three a character at most. */
    public static void writeText(DataOutputStream out, String text) throws IOException {
        out.writeUTF(Texts.cut(text));
    }

    /** Returns what a writer writes. */
    public static byte[] bytes(Writer writer) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            writer.to(out);
        } catch (IOException error) {
            throw new IllegalStateException("memory can be written to", error);
        }
        return bytes.toByteArray();
    }

    /** Returns what a record holds; throws CORRUPT_DATA for one of another form, or that is longer. */
    public static <T> T parse(byte[] record, Reader<T> reader) {
        try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(record))) {
            T parsed = reader.from(in);
            require(in.available() == 0);
            return parsed;
        } catch (IOException error) {
            throw damaged(error);
        }
    }

    /** Writes bytes behind their number. */
    public static void write(DataOutputStream out, byte[] data) throws IOException {
        out.writeInt(data.length);
        out.write(data);
    }

    /** Reads bytes behind their number; throws CORRUPT_DATA where fewer are left. */
    public static byte[] read(DataInputStream in) throws IOException {
        int length = in.readInt();
        require(length >= 0 && length <= in.available());
        byte[] data = new byte[length];
        in.readFully(data);
        return data;
    }

    /** Reads how many follow; throws CORRUPT_DATA for a number below none. */
    public static int count(DataInputStream in) throws IOException {
        int count = in.readInt();
        require(count >= 0 && count <= MOST);
        return count;
    }

    /** Throws CORRUPT_DATA, as reading a damaged record does, unless it holds. */
    public static void require(boolean holds) {
        if (!holds) {
            throw damaged(null);
        }
    }

    private static MienException damaged(Throwable cause) {
        return new MienException(
                ErrorCode.CORRUPT_DATA, "a stored record is of another form; upgrade this program, or wipe and enrol", cause);
    }
}
