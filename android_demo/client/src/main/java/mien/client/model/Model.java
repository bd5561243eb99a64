package mien.client.model;

/** A model with its parameters, checked against its id. */
public final class Model {
    public final String modelId;
    public final ModelSpec spec;
    public final Parameters parameters;
    /** Null where the model has none. */
    public final Blob publicShard;

    public Model(String modelId, ModelSpec spec, Parameters parameters, Blob publicShard) {
        this.modelId = modelId;
        this.spec = spec;
        this.parameters = parameters;
        this.publicShard = publicShard;
    }
}
