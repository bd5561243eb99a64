package mien.client.model;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.nio.ByteBuffer;
import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Parameters stay in their file, a changed part aside, and a store takes none that are not what their model says. */
public class ParametersTest {
    @Rule public final TemporaryFolder temporary = new TemporaryFolder();

    private Vectors file;
    private ModelSpec spec;
    private byte[] theta;
    private ParameterPart everything;

    @Before
    public void load() throws Exception {
        file = Vectors.load("golden/client/layouts.json");
        spec = ModelSpec.parse(Bytes.utf8(file.at("spec_json").text()));
        theta = file.at("theta").bytes();
        everything = spec.layout.part(Arrays.asList("*"));
    }

    private Model stored(byte[] data) {
        ModelStore store = new ModelStore(new Folder(temporary.getRoot().toPath().resolve("models")));
        Blob blob = new Blob(Bytes.hex(Bytes.sha256(data)), data.length);
        Manifest manifest =
                new Manifest(
                        file.at("model_id").text(), Bytes.utf8(file.at("spec_json").text()), blob, null, new byte[0], new byte[0]);
        return store.fetch(manifest, (wanted, folder, what) -> folder.write(wanted.sha256, data));
    }

    @Test
    public void aStoredModelsParametersAreMapped() {
        Parameters parameters = stored(theta).parameters;
        assertArrayEquals(theta, Bytes.littleEndian(parameters.gather(everything)));
        for (String name : spec.layout.entries.keySet()) {
            assertTrue(name, parameters.tensor(name).isDirect());
            assertFalse(name, parameters.tensor(name).hasArray());
        }
    }

    @Test
    public void aPartIsChangedAndNothingElse() {
        Parameters parameters = stored(theta).parameters;
        String first = spec.layout.entries.keySet().iterator().next();
        ParameterPart part = spec.layout.part(Arrays.asList(first));
        float[] values = new float[part.size];
        Arrays.fill(values, 7);
        Parameters changed = parameters.with(part, values);
        assertArrayEquals(values, changed.gather(part), 0);
        assertTrue(changed.tensor(first).isDirect());
        float[] all = Bytes.floats(theta);
        assertArrayEquals(all, parameters.gather(everything), 0);
        System.arraycopy(values, 0, all, spec.layout.entries.get(first).offset, values.length);
        assertArrayEquals(all, changed.gather(everything), 0);
        assertArrayEquals(all, changed.with(part, values).gather(everything), 0);
    }

    @Test
    public void whatIsNotTheModelIsNotTaken() {
        for (int at : new int[] {0, theta.length - 4}) {
            for (float wrong : new float[] {Float.NaN, Float.NEGATIVE_INFINITY, 1e9f}) {
                byte[] data = theta.clone();
                System.arraycopy(Bytes.littleEndian(new float[] {wrong}), 0, data, at, 4);
                Raised.by(ErrorCode.CORRUPT_DATA, "damaged", () -> stored(data));
            }
        }
        Raised.by(ErrorCode.CORRUPT_DATA, "sizes", () -> stored(Arrays.copyOf(theta, theta.length - 4)));
        byte[] data = theta.clone();
        System.arraycopy(Bytes.littleEndian(new float[] {Float.NaN}), 0, data, 4, 4);
        assertFalse("only the id would tell", new Parameters(spec.layout, ByteBuffer.wrap(data)).isFinite());
        assertEquals(file.at("model_id").text(), stored(theta).modelId);
    }
}
