package mien.client.model;

/** A model as the coordinator offers it; the bundle is what the release key signed, empty where nothing is. */
public final class Manifest {
    public final String modelId;
    public final byte[] specJson;
    public final Blob theta;
    /** Null where the model has none. */
    public final Blob publicShard;

    public final byte[] bundleJson;
    public final byte[] bundleSignature;

    /** Holds what a coordinator sent; nothing of it is checked yet. */
    public Manifest(
            String modelId, byte[] specJson, Blob theta, Blob publicShard, byte[] bundleJson, byte[] bundleSignature) {
        this.modelId = modelId;
        this.specJson = specJson;
        this.theta = theta;
        this.publicShard = publicShard;
        this.bundleJson = bundleJson;
        this.bundleSignature = bundleSignature;
    }
}
