package mien.client.model;

/** A model with its parameters, checked against its id. */
public final class Model {
    public final String modelId;
    public final ModelSpec spec;
    public final Parameters parameters;
    /** Null where the model has none. */
    public final Blob publicShard;

    /** Puts a model together of parts that were checked; without public faces their blob is null. */
    public Model(String modelId, ModelSpec spec, Parameters parameters, Blob publicShard) {
        this.modelId = modelId;
        this.spec = spec;
        this.parameters = parameters;
        this.publicShard = publicShard;
    }
}
