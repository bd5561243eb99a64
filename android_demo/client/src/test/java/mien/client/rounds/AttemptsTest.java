package mien.client.rounds;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.secagg.RoundConfig;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** What a device remembers of sums outlives it: no attempt twice, no shares twice. */
public class AttemptsTest {
    @Rule public final TemporaryFolder folder = new TemporaryFolder();

    /** Opens the log anew, as after a restart. */
    private Attempts open() {
        Folder root = new Folder(folder.getRoot().toPath());
        return new Attempts(new Vault(root.folder("sums"), new FileKeyProvider(root.folder("keys")), "sums"));
    }

    private static RoundConfig config(int attempt) throws Exception {
        byte[] bytes = Vectors.load("golden/secagg/primitives.json").at("config").at(0).at("bytes").bytes();
        bytes[3 + 16 + 32 + 8 + 1] = (byte) attempt;
        return RoundConfig.parse(bytes);
    }

    @Test
    public void eachStepOnceAndInOrder() throws Exception {
        RoundConfig config = config(3);
        assertFalse(open().hasBegun(config.attemptId));
        open().begin(config);
        assertTrue(open().hasBegun(config.attemptId));
        assertFalse(open().hasBegun(config(4).attemptId));
        Raised.by(ErrorCode.REPLAY, "begun again", () -> open().begin(config));
        Raised.by(ErrorCode.REPLAY, "shares before the vector", () -> open().recordUnmasked(config.attemptId));
        open().recordMasked(config.attemptId);
        Raised.by(ErrorCode.REPLAY, "a second vector", () -> open().recordMasked(config.attemptId));
        open().recordUnmasked(config.attemptId);
        Raised.by(ErrorCode.REPLAY, "shares twice", () -> open().recordUnmasked(config.attemptId));
        assertEquals(1, open().participations().size());
        RoundConfig older = config(2);
        Raised.by(ErrorCode.REPLAY, "an older attempt", () -> open().begin(older));
        open().begin(config(4));
        assertTrue(open().hasBegun(config.attemptId));
    }
}
