package mien.client.model;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Fields;
import mien.client.wire.Json;
import mien.client.wire.Texts;

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
    /** What was measured of groups of people, all that the manifest has. */
    private final List<Group> groups = new ArrayList<>();

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

    /** What was measured of false matches among people of one group, at the threshold for all people. */
    public static final class Group {
        /** What groups differ by (age), and which of them it is (0-12). */
        public final String attribute;

        public final String name;
        /** Whether strangers of this group are taken for a person more than 10 times as often as they should be. */
        public final boolean isAboveRate;

        private final boolean isTold;
        private final String modelId;

        private Group(Fields fields) {
            attribute = Texts.name(fields.text("attribute"), "a group of people");
            name = Texts.name(fields.text("group"), "a group of people");
            String verdict = fields.text("verdict");
            isAboveRate = verdict.equals("exceeds");
            isTold = !verdict.equals("too_small");
            modelId = fields.text("model_id");
        }

        @Override
        public String toString() {
            return attribute + " " + name;
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
        if (spec.has("groups")) {
            for (Fields each : spec.objects("groups")) {
                groups.add(new Group(each));
            }
        }
        if (!spec.text("layout_sha256").equals(layout.sha256)) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the model's manifest names another layout than it holds; fetch it again");
        }
    }

    /** Returns the groups that were measured on a model, this one's, and of people enough to tell. */
    public List<Group> groupsMeasured(String modelId) {
        List<Group> measured = new ArrayList<>();
        for (Group each : groups) {
            if (each.isTold && each.modelId.equals(modelId)) {
                measured.add(each);
            }
        }
        return measured;
    }

    /** Returns a model's description; throws CORRUPT_DATA when its pieces do not belong together. */
    public static ModelSpec parse(byte[] specJson) {
        Fields whole = Json.object(specJson, "the model's manifest");
        return new ModelSpec(whole.object("spec"), ParameterLayout.parse(whole.objects("layout")));
    }
}
