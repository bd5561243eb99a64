package mien.client.model;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
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
        Blob blob = new Blob(Bytes.hex(Bytes.sha256(data)), data.length);
        return fetch(blob, (wanted, folder, what) -> folder.write(wanted.sha256, data));
    }

    private Model fetch(Blob blob, ModelStore.Source source) {
        ModelStore store = new ModelStore(new Folder(temporary.getRoot().toPath().resolve("models")));
        String id = store.has(file.at("model_id").text()) ? Bytes.hex(new byte[32]) : file.at("model_id").text();
        byte[] spec = Bytes.utf8(file.at("spec_json").text());
        return store.fetch(new Manifest(id, spec, blob, null, new byte[0], new byte[0]), source);
    }

    @Test
    public void modelsThatNeverComeWholeDoNotFillTheDisk() {
        stored(theta);
        Folder folder = new Folder(temporary.getRoot().toPath().resolve("models"));
        List<String> there = folder.names();
        for (int i = 0; i < 5; i++) {
            byte[] data = theta.clone();
            data[0] ^= (byte) (i + 1);
            String sha256 = Bytes.hex(Bytes.sha256(data));
            Raised.by(ErrorCode.CORRUPT_DATA, "another model's", () -> stored(data));
            Set<String> now = new HashSet<>(folder.names());
            now.removeAll(there);
            assertEquals(Collections.singleton(sha256), now);
            ModelStore.Source breaks =
                    (wanted, into, what) -> {
                        into.append(wanted.sha256, Arrays.copyOf(data, 4));
                        throw new MienException(ErrorCode.UNREACHABLE, "away");
                    };
            Blob half = new Blob(Bytes.hex(Bytes.sha256(new byte[] {(byte) i})), data.length);
            Raised.by(ErrorCode.UNREACHABLE, "half", () -> fetch(half, breaks));
            assertEquals(there, folder.names());
            assertEquals("a part to go on with", 4, folder.partSize(half.sha256));
            Raised.by(ErrorCode.UNREACHABLE, "half again", () -> fetch(half, breaks));
            assertEquals("the same part", 8, folder.partSize(half.sha256));
            for (int earlier = 0; earlier < i; earlier++) {
                assertEquals(0, folder.partSize(Bytes.hex(Bytes.sha256(new byte[] {(byte) earlier}))));
            }
        }
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
