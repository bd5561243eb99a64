package mien.client.people;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.store.Records;
import mien.client.wire.Bytes;

/** What a released model became on this phone for the people on it, as it lies sealed in the gallery; it never leaves it. */
final class PersonalModel {
    private static final int FORM = 1;

    final String modelId;
    final Branch branch;
    /** By the person's number. */
    final Map<Integer, PersonalThreshold> thresholds;

    /** Of the released model, from which these were carried over. */
    final double releasedThreshold;

    PersonalModel(
            String modelId, Branch branch, Map<Integer, PersonalThreshold> thresholds, double releasedThreshold) {
        this.modelId = modelId;
        this.branch = branch;
        this.thresholds = thresholds;
        this.releasedThreshold = releasedThreshold;
    }

    byte[] toBytes() {
        return Records.bytes(this::write);
    }

    private void write(DataOutputStream out) throws IOException {
        out.writeByte(FORM);
        out.writeUTF(modelId);
        out.writeDouble(releasedThreshold);
        Records.write(out, Bytes.littleEndian(branch.bias));
        for (float[] row : branch.weight) {
            Records.write(out, Bytes.littleEndian(row));
        }
        out.writeInt(thresholds.size());
        for (Map.Entry<Integer, PersonalThreshold> each : thresholds.entrySet()) {
            out.writeInt(each.getKey());
            each.getValue().write(out);
        }
    }

    /** Returns the model in a record; throws CORRUPT_DATA where it is of another form. */
    static PersonalModel ofBytes(byte[] record) {
        return Records.parse(record, PersonalModel::read);
    }

    private static PersonalModel read(DataInputStream in) throws IOException {
        Records.require(in.readByte() == FORM);
        String modelId = in.readUTF();
        double releasedThreshold = in.readDouble();
        float[] bias = Bytes.floats(Records.read(in));
        float[][] weight = new float[bias.length][];
        for (int row = 0; row < weight.length; row++) {
            weight[row] = Bytes.floats(Records.read(in));
            Records.require(weight[row].length == bias.length);
        }
        Map<Integer, PersonalThreshold> thresholds = new LinkedHashMap<>();
        for (int left = Records.count(in); left > 0; left--) {
            int person = in.readInt();
            thresholds.put(person, PersonalThreshold.read(in));
        }
        return new PersonalModel(modelId, new Branch(weight, bias), thresholds, releasedThreshold);
    }
}
