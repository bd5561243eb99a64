package mien.app.keys;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Folder;
import mien.client.store.Vault;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Keys that are stored sealed by other keys; here those are files, on a phone AndroidKeyStore's. */
public class KeysTest {
    @Rule public final TemporaryFolder folder = new TemporaryFolder();

    private Path path;

    @Before
    public void begin() {
        path = folder.getRoot().toPath().resolve("keys");
    }

    @Test
    public void aKeyIsTheSameAfterARestart() {
        assertNull("none is made by asking", keys().sealing().find("rounds"));
        byte[] key = keys().sealing().make("rounds").getEncoded();
        assertEquals(32, key.length);
        assertArrayEquals(key, keys().sealing().find("rounds").getEncoded());
        assertFalse(Arrays.equals(key, keys().sealing().make("sums").getEncoded()));
    }

    @Test
    public void theGalleryOpensWhileLockedOnlyWhereItMust() {
        byte[] key = keys().sealing().make("gallery").getEncoded();
        assertTrue(Files.exists(path.resolve("gallery.unlocked")));
        assertFalse(Files.exists(path.resolve("gallery")));
        keys().openWhileLocked(true);
        assertTrue(Files.exists(path.resolve("gallery")));
        assertFalse(Files.exists(path.resolve("gallery.unlocked")));
        assertArrayEquals("it is the same key", key, keys().sealing().find("gallery").getEncoded());
        keys().openWhileLocked(false);
        assertTrue(Files.exists(path.resolve("gallery.unlocked")));
        assertFalse(Files.exists(path.resolve("gallery")));
        assertArrayEquals(key, keys().sealing().find("gallery").getEncoded());
    }

    @Test
    public void whatWasChangedDoesNotOpen() throws IOException {
        keys().sealing().make("rounds");
        byte[] sealed = Files.readAllBytes(path.resolve("rounds"));
        sealed[sealed.length - 1] ^= 1;
        Files.write(path.resolve("rounds"), sealed);
        MienException error = assertThrows(MienException.class, () -> keys().sealing().find("rounds"));
        assertEquals(ErrorCode.CORRUPT_DATA, error.code());
    }

    @Test
    public void nothingOpensAfterItsKeyWasDestroyed() {
        Keys keys = keys();
        Vault vault = new Vault(new Folder(path.resolve("records")), keys.sealing(), "rounds");
        vault.put("one", new byte[] {1, 2, 3});
        keys.sealing().destroy("rounds");
        assertFalse(Files.exists(path.resolve("rounds")));
        MienException error = assertThrows(MienException.class, () -> vault.get("one"));
        assertEquals(ErrorCode.KEY_LOST, error.code());
    }

    /** A power cut between sealing a key anew and forgetting how it was sealed before leaves both. */
    @Test
    public void whereAStopLeftTwoTheOneThatOpensIsTheKey() throws IOException {
        byte[] key = keys().sealing().make("gallery").getEncoded();
        byte[] unlocked = Files.readAllBytes(path.resolve("gallery.unlocked"));
        keys().openWhileLocked(true);
        Files.write(path.resolve("gallery.unlocked"), unlocked); // what sealed it is destroyed already
        assertArrayEquals(key, keys().sealing().find("gallery").getEncoded());
        keys().openWhileLocked(true);
        assertFalse(Files.exists(path.resolve("gallery.unlocked")));
        assertArrayEquals(key, keys().sealing().find("gallery").getEncoded());
    }

    private Keys keys() {
        return new FileKeys(new Folder(path));
    }
}
