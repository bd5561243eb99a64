package mien.client.model;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Fields;
import mien.client.wire.Json;

/** What is known of a model besides its parameters, with its layout. */
public final class ModelSpec {
    public final String backbone;
    public final FaceInput input;
    /** Where the model comes from, and on what terms. */
    public final String source;
    public final String terms;
    /** Patterns of the part that is trained by default, as the manifest has them; {@link #trainable} has no empty list. */
    public final List<String> patterns;
    public final List<String> trainable;
    public final ParameterLayout layout;
    /** Thresholds in the manifest's order: accept where the cosine is at least {@code value}. */
    public final List<Threshold> thresholds;

    /** A decision threshold with the false match rate that was measured for it. */
    public static final class Threshold {
        public final double value;
        public final double fmr;
        public final String dataset;
        /** The model that it was measured on; it is no other's. */
        public final String modelId;

        private Threshold(Fields fields) {
            value = fields.real("value");
            fmr = fields.real("fmr");
            dataset = fields.text("dataset");
            modelId = fields.text("model_id");
        }
    }

    private ModelSpec(Fields spec, ParameterLayout layout) {
        this.layout = layout;
        backbone = spec.text("backbone");
        input = FaceInput.parse(spec.object("input"));
        source = spec.text("source");
        terms = spec.text("terms");
        patterns = spec.texts("trainable");
        trainable = patterns.isEmpty() ? Collections.singletonList("*") : patterns;
        thresholds = new ArrayList<>();
        for (Fields each : spec.objects("thresholds")) {
            thresholds.add(new Threshold(each));
        }
        if (!spec.text("layout_sha256").equals(layout.sha256)) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the model's manifest names another layout than it holds; fetch it again");
        }
    }

    /** Returns a model's description; throws CORRUPT_DATA when its pieces do not belong together. */
    public static ModelSpec parse(byte[] specJson) {
        Fields whole = Json.object(specJson, "the model's manifest");
        return new ModelSpec(whole.object("spec"), ParameterLayout.parse(whole.objects("layout")));
    }
}
