package mien.client.model;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;
import mien.client.wire.Safetensors;

/**
 * The models that a device holds: fetched once by hash, checked, usable without a network afterwards.
 *
 * <p>The name of a blob is its hash and the id of a model is the hash of its parameters, so a file here is right or it
 * is fetched again.
 */
public final class ModelStore {
    private static final String DESCRIBED = ".json";
    private static final long MAX_THETA_BYTES = 1L << 29;
    private static final long MAX_SHARD_BYTES = 1L << 28;

    private final Folder folder;

    /** Fetches a blob into a file, which appears whole and checked or not at all. */
    public interface Source {
        /** Puts a blob's bytes into the folder under its hash; what is wanted is said in errors. */
        void download(Blob blob, Folder folder, String what);
    }

    /** Keeps models in a folder of their own. */
    public ModelStore(Folder folder) {
        this.folder = folder;
    }

    /** Returns whether a model is here, whole. */
    public boolean has(String modelId) {
        return Bytes.isSha256(modelId) && folder.has(modelId + DESCRIBED);
    }

    /** Returns a stored model's description; throws NOT_FOUND when it was never fetched, CORRUPT_DATA when damaged. */
    public ModelSpec describe(String modelId) {
        return ModelSpec.parse(Bytes.unhex(stored(modelId).text("spec_json")));
    }

    private Fields stored(String modelId) {
        if (!has(modelId)) {
            throw new MienException(ErrorCode.NOT_FOUND, "that model is not on this device; fetch it while online");
        }
        return Json.object(folder.read(modelId + DESCRIBED), "the stored manifest");
    }

    /** Returns a stored model; throws NOT_FOUND when it was never fetched, CORRUPT_DATA when damaged. */
    public Model load(String modelId) {
        Fields stored = stored(modelId);
        ModelSpec spec = ModelSpec.parse(Bytes.unhex(stored.text("spec_json")));
        ByteBuffer data = folder.map(stored.text("theta"));
        boolean fits = data != null && data.remaining() == 4L * spec.layout.size;
        Parameters parameters = fits ? new Parameters(spec.layout, data) : null;
        if (!fits || !parameters.isFinite() || !parameters.modelId().equals(modelId)) {
            throw new MienException(ErrorCode.CORRUPT_DATA, "the stored model is damaged; fetch it again");
        }
        Blob shard = stored.has("shard") ? new Blob(stored.text("shard"), stored.number("shard_bytes")) : null;
        return new Model(modelId, spec, parameters, shard);
    }

    /** Returns a model, fetching what is not stored yet; the manifest is stored last, so it means "complete". */
    public Model fetch(Manifest manifest, Source source) {
        ModelSpec spec = ModelSpec.parse(manifest.specJson);
        boolean sizesFit =
                manifest.theta.sizeBytes == 4L * spec.layout.size
                        && manifest.theta.sizeBytes <= MAX_THETA_BYTES
                        && (manifest.publicShard == null || manifest.publicShard.sizeBytes <= MAX_SHARD_BYTES);
        if (!Bytes.isSha256(manifest.modelId) || !sizesFit) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the model's files have other sizes than its manifest says; tell the operator");
        }
        forgetUnfinished(manifest);
        fetch(manifest.theta, folder, source, "the model");
        Map<String, Object> stored = new LinkedHashMap<>();
        stored.put("spec_json", Bytes.hex(manifest.specJson));
        stored.put("theta", manifest.theta.sha256);
        if (manifest.publicShard != null) {
            fetch(manifest.publicShard, folder, source, "the public faces");
            stored.put("shard", manifest.publicShard.sha256);
            stored.put("shard_bytes", manifest.publicShard.sizeBytes);
        }
        folder.write(manifest.modelId + DESCRIBED, Bytes.utf8(Json.write(stored)));
        try {
            return load(manifest.modelId);
        } catch (MienException error) {
            // The blob is what its hash says, so the operator's manifest and parameters do not belong together.
            folder.delete(manifest.modelId + DESCRIBED);
            throw error;
        }
    }

    /** Returns the public faces that came with a model, null where it has none. */
    public PublicShard loadShard(Model model) {
        if (model.publicShard == null) {
            return null;
        }
        ByteBuffer data = folder.map(model.publicShard.sha256);
        if (data == null) {
            throw new MienException(ErrorCode.CORRUPT_DATA, "the public faces are missing; fetch the model again");
        }
        return PublicShard.parse(Safetensors.parse(data, "the public faces"), model.spec.input);
    }

    /**
     * Removes what no stored model needs, nor the wanted one: of fetches that did not end. A coordinator could fill the disk
     * else, with models that never come whole or are not what it says.
     */
    private void forgetUnfinished(Manifest wanted) {
        Set<String> keep = new HashSet<>();
        keep.add(wanted.theta.sha256);
        keep.add(wanted.publicShard == null ? "" : wanted.publicShard.sha256);
        folder.deletePartsBut(keep);
        for (String name : folder.names()) {
            if (name.endsWith(DESCRIBED)) {
                keep.add(name);
                keep.addAll(blobs(name));
            }
        }
        for (String name : folder.names()) {
            if (!keep.contains(name)) {
                folder.delete(name);
            }
        }
    }

    /** Returns the hashes of what a stored model consists of; none where its description is damaged. */
    private List<String> blobs(String described) {
        try {
            Fields stored = Json.object(folder.read(described), "the stored manifest");
            return Arrays.asList(stored.text("theta"), stored.text("shard", ""));
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error;
            }
            return Collections.emptyList();
        }
    }

    /** Removes every model but these, and the blobs that only removed models used. */
    public void keepOnly(String... modelIds) {
        Set<String> keep = new HashSet<>();
        for (String modelId : Arrays.asList(modelIds)) {
            if (has(modelId)) {
                Fields stored = Json.object(folder.read(modelId + DESCRIBED), "the stored manifest");
                keep.addAll(Arrays.asList(modelId + DESCRIBED, stored.text("theta"), stored.text("shard", "")));
            }
        }
        for (String name : folder.names()) {
            if (!keep.contains(name)) {
                folder.delete(name);
            }
        }
        folder.deleteParts();
    }

    /** Fetches a blob into a folder, unless it is there and whole. */
    public static void fetch(Blob blob, Folder folder, Source source, String what) {
        if (!folder.hasWhole(blob.sha256, blob.sha256)) {
            source.download(blob, folder, what);
        }
    }
}
