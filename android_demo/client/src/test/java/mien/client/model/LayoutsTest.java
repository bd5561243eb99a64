package mien.client.model;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.tasks.ContributionLayout;
import mien.client.tasks.Statement;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;
import org.junit.Test;

/** Layouts, parts, contributions and network inputs as Python has them. */
public class LayoutsTest {
    @Test
    public void layoutsAndParts() throws Exception {
        Vectors file = Vectors.load("golden/client/layouts.json");
        ModelSpec spec = ModelSpec.parse(Bytes.utf8(file.at("spec_json").text()));
        Parameters parameters = new Parameters(spec.layout, ByteBuffer.wrap(file.at("theta").bytes()));
        assertEquals(file.at("layout_sha256").text(), spec.layout.sha256);
        assertEquals(file.at("model_id").text(), parameters.modelId());
        for (int i = 0; i < file.at("parts").size(); i++) {
            Vectors given = file.at("parts").at(i);
            ParameterPart part = spec.layout.part(texts(given.at("patterns")));
            assertEquals(given.at("names").raw(), part.names);
            assertArrayEquals(given.at("values").bytes(), Bytes.littleEndian(parameters.gather(part)));
            ContributionLayout contribution = new ContributionLayout(part);
            assertEquals(given.at("contribution_sha256").text(), contribution.sha256);
            assertEquals(given.at("contribution_size").number(), contribution.size);
        }
        for (int i = 0; i < file.at("refused_patterns").size(); i++) {
            List<String> pattern = Collections.singletonList(file.at("refused_patterns").at(i).text());
            Raised.by(ErrorCode.CONFIG, pattern.get(0), () -> spec.layout.part(pattern));
        }
    }

    @Test
    public void whomAModelWasMeasuredOn() throws Exception {
        Vectors file = Vectors.load("golden/client/layouts.json");
        String modelId = file.at("group_model_id").text();
        for (int i = 0; i < file.at("by_groups").size(); i++) {
            Vectors given = file.at("by_groups").at(i);
            ModelSpec spec = ModelSpec.parse(Bytes.utf8(given.at("spec_json").text()));
            List<ModelSpec.Group> measured = spec.groupsMeasured(modelId);
            List<String> above = new ArrayList<>();
            for (ModelSpec.Group each : measured) {
                if (each.isAboveRate) {
                    above.add(each.toString());
                }
            }
            assertEquals(given.at("measured").raw().toString(), measured.toString());
            assertEquals(given.at("above").raw().toString(), above.toString());
            List<String> never = new ArrayList<>();
            for (Subject subject : Subject.without(measured)) {
                never.add(file.at("subjects").at(subject.ordinal()).text());
            }
            assertEquals(given.at("never").raw(), never);
        }
        assertEquals(file.at("subjects").size(), Subject.values().length);
    }

    private static List<String> texts(Vectors given) {
        String[] texts = new String[given.size()];
        for (int i = 0; i < texts.length; i++) {
            texts[i] = given.at(i).text();
        }
        return Arrays.asList(texts);
    }

    @Test
    public void familiesTakeFacesAsPythonSays() throws Exception {
        Vectors inputs = Vectors.load("golden/client/layouts.json").at("face_inputs");
        for (Object name : ((Map<?, ?>) inputs.raw()).keySet()) {
            FaceInput own = FaceInput.parse(Fields.of(inputs.at((String) name).raw(), "input"));
            assertTrue((String) name, own.isOwnOf((String) name));
            assertFalse(own.isOwnOf("another"));
        }
        FaceInput nothing = FaceInput.parse(Json.object(Bytes.utf8(NOTHING), "input"));
        assertFalse(nothing.isOwnOf("sface"));
        assertFalse(nothing.isLike(FaceInput.parse(Fields.of(inputs.at("sface").raw(), "input"))));
    }

    /** Every crop is -1 everywhere, as a coordinator would have it that wants others' updates to be nothing. */
    private static final String NOTHING =
            "{\"width\":112,\"height\":112,\"colour\":\"RGB\",\"mean\":1e12,\"scale\":1e12,\"dim\":128}";

    @Test
    public void statementsBindWhatADeviceTakesIn() throws Exception {
        Vectors file = Vectors.load("golden/client/layouts.json");
        ModelSpec spec = ModelSpec.parse(Bytes.utf8(file.at("spec_json").text()));
        for (int i = 0; i < file.at("statements").size(); i++) {
            Vectors given = file.at("statements").at(i);
            String shard = given.at("public_shard").text();
            byte[] told = given.at("told").bytes();
            byte[] hash =
                    Statement.sha256(
                            given.at("method").text(), spec, shard.isEmpty() ? null : new Blob(shard, 1), told);
            assertArrayEquals(given.at("sha256").bytes(), hash);
        }
    }

    @Test
    public void cropsAsNetworksSeeThem() throws Exception {
        Vectors inputs = Vectors.load("golden/client/layouts.json").at("inputs");
        for (int i = 0; i < inputs.size(); i++) {
            FaceInput input = FaceInput.parse(Fields.of(inputs.at(i).at("spec").raw(), "input"));
            byte[] crop = new byte[input.cropBytes()];
            for (int at = 0; at < crop.length; at++) {
                int pixel = at / 3;
                crop[at] = (byte) (7 * (pixel / input.width) + 3 * (pixel % input.width) + 50 * (at % 3));
            }
            assertArrayEquals(inputs.at(i).at("sha256").bytes(), hashed(input, crop, false));
            assertArrayEquals(inputs.at(i).at("mirrored_sha256").bytes(), hashed(input, crop, true));
        }
    }

    private static byte[] hashed(FaceInput input, byte[] crop, boolean mirrored) {
        float[] out = new float[crop.length];
        input.write(crop, mirrored, out, 0);
        return Bytes.sha256(Bytes.littleEndian(out));
    }

    @Test
    public void aContributionIsWeightedAndUnweightedAgain() throws Exception {
        ModelSpec spec = ModelSpec.parse(Bytes.utf8(Vectors.load("golden/client/layouts.json").at("spec_json").text()));
        ContributionLayout layout = new ContributionLayout(spec.layout.part(Collections.singletonList("embedding.bias")));
        byte[] data = layout.pack(5, 0.5, 0.25, new float[] {1, -2, 3});
        assertArrayEquals(new float[] {1, 5, 2.5f, 1.25f, 5, -10, 15}, Bytes.floats(data), 0);
        Raised.by(ErrorCode.NON_FINITE, "NaN", () -> layout.pack(5, 0, 0, new float[] {1, Float.NaN, 3}));
    }
}
