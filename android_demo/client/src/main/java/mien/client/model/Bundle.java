package mien.client.model;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;
import org.bouncycastle.math.ec.rfc8032.Ed25519;

/**
 * What the operator's release key vouches for: a manifest, and by its hashes every file of a release.
 *
 * <p>Nothing is parsed before its signature holds, and no file counts that is not listed.
 */
public final class Bundle {
    static final String MODEL = "model.json";
    static final String THETA = "theta.f32";
    static final String SHARD = "public_shard.safetensors";
    static final String GRAPHS = "graphs.json";
    private static final byte[] CONTEXT = Bytes.utf8("mien/bundle/1\n");
    private static final int SIGNATURE_BYTES = 64;
    private static final String NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}";

    public final long sequence;
    public final String modelId;
    public final String layoutSha256;
    public final Map<String, Blob> files = new LinkedHashMap<>();
    public final List<String> fallbacks;
    public final String minSdk;
    /** How {@code fallbacks} names this manifest. */
    public final String sha256;

    private Bundle(byte[] json) {
        Fields fields = Json.object(json, "the bundle's manifest");
        if (fields.number("format", 0) != 1) {
            throw new MienException(ErrorCode.VERSION, "the bundle is of a newer form; upgrade this program");
        }
        sequence = fields.number("sequence");
        modelId = fields.text("model_id");
        layoutSha256 = fields.text("layout_sha256");
        fallbacks = new ArrayList<>(fields.texts("fallbacks"));
        minSdk = fields.text("min_sdk");
        sha256 = Bytes.hex(Bytes.sha256(json));
        for (Fields file : fields.objects("files")) {
            String name = file.text("name");
            Blob blob = new Blob(file.text("sha256"), file.number("size_bytes"));
            if (!name.matches(NAME) || files.put(name, blob) != null) {
                throw unusable("it lists a file twice, or one that cannot be");
            }
        }
        if (sequence < 1 || !Bytes.isSha256(modelId) || !Bytes.isSha256(layoutSha256) || !files.containsKey(THETA)) {
            throw unusable("it lacks a sequence, a model or its parameters");
        }
    }

    private static MienException unusable(String why) {
        return new MienException(
                ErrorCode.CORRUPT_DATA, "the release's manifest cannot be: " + why + "; do not use it, tell the operator");
    }

    /** Returns the manifest once its signature holds under the release key (64 hex digits of an Ed25519 key). */
    public static Bundle verify(String releaseKey, byte[] unverifiedJson, byte[] signature) {
        byte[] message = Bytes.concat(CONTEXT, unverifiedJson);
        boolean holds =
                signature.length == SIGNATURE_BYTES
                        && Ed25519.verify(signature, 0, Bytes.unhex(releaseKey), 0, message, 0, message.length);
        if (!holds) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "the release is not signed by the operator's release key, or was changed; do not use it, tell the"
                            + " operator");
        }
        return new Bundle(unverifiedJson);
    }

    /** Throws CORRUPT_DATA unless a manifest that the coordinator offers is the signed one in every piece. */
    void check(Manifest offered) {
        Blob described = new Blob(Bytes.hex(Bytes.sha256(offered.specJson)), offered.specJson.length);
        boolean shardFits =
                offered.publicShard == null
                        ? !files.containsKey(SHARD)
                        : offered.publicShard.isSame(files.get(SHARD));
        boolean same =
                offered.modelId.equals(modelId)
                        && offered.theta.isSame(files.get(THETA))
                        && described.isSame(files.get(MODEL))
                        && shardFits;
        if (!same || !ModelSpec.parse(offered.specJson).layout.sha256.equals(layoutSha256)) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the release is not the signed one; do not use it, tell the operator");
        }
    }

    /** Returns the files that this program runs: the list of graphs and those for ONNX Runtime. */
    public Map<String, Blob> graphs() {
        Map<String, Blob> found = new LinkedHashMap<>();
        for (Map.Entry<String, Blob> file : files.entrySet()) {
            if (file.getKey().equals(GRAPHS) || file.getKey().endsWith(".onnx")) {
                found.put(file.getKey(), file.getValue());
            }
        }
        return found;
    }
}
