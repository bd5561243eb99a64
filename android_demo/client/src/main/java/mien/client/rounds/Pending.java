package mien.client.rounds;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.MienException;
import mien.client.store.Records;
import mien.client.store.Vault;
import mien.client.train.Tensor;
import mien.client.train.TensorRecords;
import mien.client.wire.RoundRef;

/**
 * A round that this device has trained for and not yet settled, kept sealed before anybody is told: after a stop the
 * very same bytes are sent, and the private state changes only if the round closed with them in its sum.
 */
final class Pending {
    private static final String RECORD = "pending";

    final RoundRef ref;
    final byte[] taskJson;
    final String modelId;
    /** Whose pictures trained, in the order of their classes, each with the mark of their agreement. */
    final Map<Integer, Long> agreed;

    final byte[] contribution;
    final Map<String, Tensor> state;
    /** Hash of all that was taken in, as {@code Statement} makes it: keys are bound to it, whatever is stored since. */
    final byte[] statement;
    /** Hash of the pictures that trained, by which it is known whether two sums hold the same. */
    final byte[] pictures;

    Pending(
            RoundRef ref,
            byte[] taskJson,
            String modelId,
            Map<Integer, Long> agreed,
            byte[] contribution,
            Map<String, Tensor> state,
            byte[] statement,
            byte[] pictures) {
        this.ref = ref;
        this.taskJson = taskJson;
        this.modelId = modelId;
        this.agreed = agreed;
        this.contribution = contribution;
        this.state = state;
        this.statement = statement;
        this.pictures = pictures;
    }

    List<Integer> people() {
        return new ArrayList<>(agreed.keySet());
    }

    void keep(Vault vault) {
        vault.put(RECORD, Records.bytes(this::write));
    }

    private void write(DataOutputStream out) throws IOException {
        out.writeUTF(ref.taskId);
        out.writeInt(ref.round);
        out.writeInt(ref.attempt);
        out.writeUTF(modelId);
        out.writeInt(agreed.size());
        for (Map.Entry<Integer, Long> each : agreed.entrySet()) {
            out.writeInt(each.getKey());
            out.writeLong(each.getValue());
        }
        Records.write(out, taskJson);
        Records.write(out, contribution);
        TensorRecords.write(out, state);
        Records.write(out, statement);
        Records.write(out, pictures);
    }

    /** Returns what was kept, null where nothing is; what never opens again is dropped, for it cannot be sent. */
    static Pending load(Vault vault) {
        try {
            byte[] record = vault.get(RECORD);
            return record == null ? null : Records.parse(record, Pending::read);
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error;
            }
            forget(vault);
            return null;
        }
    }

    private static Pending read(DataInputStream in) throws IOException {
        RoundRef ref = new RoundRef(in.readUTF(), in.readInt(), in.readInt());
        String modelId = in.readUTF();
        Map<Integer, Long> agreed = new LinkedHashMap<>();
        for (int left = Records.count(in); left > 0; left--) {
            int person = in.readInt();
            agreed.put(person, in.readLong());
        }
        byte[] taskJson = Records.read(in);
        byte[] contribution = Records.read(in);
        Map<String, Tensor> state = TensorRecords.read(in);
        byte[] statement = Records.read(in);
        byte[] pictures = in.available() == 0 ? OwnSum.ANY_PICTURES : Records.read(in); // an earlier version kept none
        Records.require(pictures.length == OwnSum.ANY_PICTURES.length);
        return new Pending(ref, taskJson, modelId, agreed, contribution, state, statement, pictures);
    }

    static void forget(Vault vault) {
        vault.remove(RECORD);
    }
}
