package mien.client.model;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import java.util.Arrays;
import java.util.HashSet;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Which releases a device takes: signed, whole, and never an older one than it has seen. */
public class ReleasesTest {
    @Rule public final TemporaryFolder folder = new TemporaryFolder();

    private final Vectors file;

    public ReleasesTest() throws Exception {
        file = Vectors.load("golden/client/bundles.json");
    }

    private Manifest offered(String name) {
        Vectors given = file.at("manifests").at(name);
        return offered(given.at("json").text(), given.at("signature").bytes());
    }

    private Manifest offered(String json, byte[] signature) {
        Blob theta = new Blob(file.at("theta").at("sha256").text(), file.at("theta").at("size_bytes").number());
        byte[] spec = Bytes.utf8(file.at("spec_json").text());
        return new Manifest(file.at("model_id").text(), spec, theta, null, Bytes.utf8(json), signature);
    }

    private ReleaseGuard guard() {
        return new ReleaseGuard(file.at("release_key").text(), new Folder(folder.getRoot().toPath()));
    }

    @Test
    public void theOrderOfReleases() {
        ReleaseGuard guard = guard();
        guard.accept(guard.check(offered("first")));
        guard.accept(guard.check(offered("second")));
        // The second names the first as one to fall back to; the third names nothing.
        assertEquals(1, guard.check(offered("first")).sequence);
        guard.accept(guard.check(offered("third")));
        Raised.by(ErrorCode.CORRUPT_DATA, "the first again", () -> guard().check(offered("first")));
        Raised.by(ErrorCode.CORRUPT_DATA, "the second again", () -> guard().check(offered("second")));
        assertEquals(3, guard().check(offered("third")).sequence);
        Raised.by(ErrorCode.VERSION, "for a newer program", () -> guard().check(offered("newer")));
    }

    @Test
    public void whatTheKeyDidNotSign() {
        String json = file.at("manifests").at("first").at("json").text();
        byte[] signature = file.at("manifests").at("first").at("signature").bytes();
        Raised.by(
                ErrorCode.CORRUPT_DATA,
                "another key's",
                () -> guard().check(offered(json, file.at("by_another_key").bytes())));
        Raised.by(
                ErrorCode.CORRUPT_DATA, "a changed manifest", () -> guard().check(offered(json + " ", signature)));
        Raised.by(ErrorCode.CORRUPT_DATA, "none", () -> guard().check(offered("", new byte[0])));
        Manifest good = offered("first");
        Manifest other = new Manifest(
                good.modelId, Bytes.concat(good.specJson, new byte[] {' '}), good.theta, null, good.bundleJson,
                good.bundleSignature);
        Raised.by(ErrorCode.CORRUPT_DATA, "another description", () -> guard().check(other));
        Manifest bigger = new Manifest(
                good.modelId, good.specJson, new Blob(good.theta.sha256, 1 + good.theta.sizeBytes), null,
                good.bundleJson, good.bundleSignature);
        Raised.by(ErrorCode.CORRUPT_DATA, "another length", () -> guard().check(bigger));
        assertNull(new ReleaseGuard("", new Folder(folder.getRoot().toPath())).check(good));
    }

    @Test
    public void graphsAreThoseOfThisEngine() {
        Bundle signed = guard().check(offered("first"));
        assertEquals(new HashSet<>(Arrays.asList("embed.onnx", "graphs.json")), signed.graphs().keySet());
    }
}
