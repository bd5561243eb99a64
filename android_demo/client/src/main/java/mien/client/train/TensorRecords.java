package mien.client.train;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.store.Records;
import mien.client.wire.Bytes;

/** Named tensors in the records of {@link Records}. */
public final class TensorRecords {
    private TensorRecords() {}

    /** Writes names, shapes and values, in the order of the map. */
    public static void write(DataOutputStream out, Map<String, Tensor> tensors) throws IOException {
        out.writeInt(tensors.size());
        for (Map.Entry<String, Tensor> each : tensors.entrySet()) {
            out.writeUTF(each.getKey());
            out.writeInt(each.getValue().shape.length);
            for (long dimension : each.getValue().shape) {
                out.writeLong(dimension);
            }
            Records.write(out, Bytes.littleEndian(each.getValue().values()));
        }
    }

    /** Returns the tensors that stand next in a record; throws CORRUPT_DATA where they are of another form. */
    public static Map<String, Tensor> read(DataInputStream in) throws IOException {
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (int left = Records.count(in); left > 0; left--) {
            String name = in.readUTF();
            int rank = in.readInt();
            Records.require(rank >= 0 && rank <= 8);
            long[] shape = new long[rank];
            long size = 1;
            for (int axis = 0; axis < rank; axis++) {
                shape[axis] = in.readLong();
                Records.require(shape[axis] >= 0 && shape[axis] <= Integer.MAX_VALUE);
                size *= Math.max(1, shape[axis]);
                Records.require(size <= Integer.MAX_VALUE);
            }
            tensors.put(name, new Tensor(Bytes.floats(Records.read(in)), shape));
        }
        return tensors;
    }
}
