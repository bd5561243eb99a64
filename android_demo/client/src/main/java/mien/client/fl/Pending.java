package mien.client.fl;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Vault;
import mien.client.train.Tensor;

/**
 * A round that this device has trained for and not yet settled, kept sealed before anybody is told: after a stop the
 * very same bytes are sent, and the private state changes only if the round closed with them in its sum.
 */
final class Pending {
    private static final String RECORD = "pending";

    final RoundRef ref;
    final byte[] taskJson;
    final String modelId;
    final int person;
    final byte[] contribution;
    final Map<String, Tensor> state;

    Pending(
            RoundRef ref,
            byte[] taskJson,
            String modelId,
            int person,
            byte[] contribution,
            Map<String, Tensor> state) {
        this.ref = ref;
        this.taskJson = taskJson;
        this.modelId = modelId;
        this.person = person;
        this.contribution = contribution;
        this.state = state;
    }

    void keep(Vault vault) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            out.writeUTF(ref.taskId);
            out.writeInt(ref.round);
            out.writeInt(ref.attempt);
            out.writeUTF(modelId);
            out.writeInt(person);
            Gallery.write(out, taskJson);
            Gallery.write(out, contribution);
            Gallery.write(out, Gallery.bytes(state));
        } catch (IOException error) {
            throw new IllegalStateException("memory can be written to", error);
        }
        vault.put(RECORD, bytes.toByteArray());
    }

    /** Returns what was kept, null where nothing is. */
    static Pending load(Vault vault) {
        byte[] record = vault.get(RECORD);
        if (record == null) {
            return null;
        }
        try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(record))) {
            RoundRef ref = new RoundRef(in.readUTF(), in.readInt(), in.readInt());
            String modelId = in.readUTF();
            int person = in.readInt();
            byte[] taskJson = Gallery.read(in);
            byte[] contribution = Gallery.read(in);
            return new Pending(ref, taskJson, modelId, person, contribution, Gallery.tensors(Gallery.read(in)));
        } catch (IOException error) {
            throw new MienException(ErrorCode.CORRUPT_DATA, "what was kept of a round is damaged; wipe it", error);
        }
    }

    static void forget(Vault vault) {
        vault.remove(RECORD);
    }
}
