package mien.client.tasks;

import mien.client.model.Blob;
import mien.client.model.FaceInput;
import mien.client.model.ModelSpec;
import mien.client.secagg.Canonical;
import mien.client.wire.Bytes;

/** All that a device takes in during a round beside task, parameters and lanes, which have hashes of their own. */
public final class Statement {
    private Statement() {}

    /**
     * Returns the hash that every key of the round is bound to: a coordinator that tells one phone another face input, or
     * other public faces, gets no sum with that phone in it. {@code publicShard} is null where the model has none,
     * {@code told} hashes what the method tells all devices alike, and is empty where it tells nothing.
     */
    public static byte[] sha256(String method, ModelSpec model, Blob publicShard, byte[] told) {
        byte[][] patterns = new byte[model.patterns.size()][];
        for (int i = 0; i < patterns.length; i++) {
            patterns[i] = Bytes.utf8(model.patterns.get(i));
        }
        return Canonical.hash(
                "statement",
                Bytes.utf8(method),
                Bytes.utf8(model.backbone),
                Bytes.utf8(model.source),
                Bytes.utf8(model.terms),
                Bytes.unhex(model.layout.sha256),
                Canonical.hash("patterns", patterns),
                numbers(model.input),
                Bytes.utf8(model.input.isBgr ? "BGR" : "RGB"),
                publicShard == null ? new byte[0] : Bytes.unhex(publicShard.sha256),
                told);
    }

    private static byte[] numbers(FaceInput input) {
        return Bytes.concat(
                Bytes.bigEndian(input.width, 4),
                Bytes.bigEndian(input.height, 4),
                Bytes.bigEndian(input.dim, 4),
                Bytes.bigEndian(Float.floatToIntBits(input.mean), 4),
                Bytes.bigEndian(Float.floatToIntBits(input.scale), 4));
    }
}
