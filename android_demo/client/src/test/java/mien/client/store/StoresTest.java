package mien.client.store;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.junit.Assume.assumeTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Collections;
import javax.crypto.SecretKey;
import javax.crypto.spec.SecretKeySpec;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.wire.Bytes;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Sealed records open where they belong, and nowhere else. */
public class StoresTest {
    @Rule public final TemporaryFolder folder = new TemporaryFolder();

    @Test
    public void recordsThatPythonSealed() throws Exception {
        Vectors file = Vectors.load("golden/client/sealed.json");
        SecretKey key = new SecretKeySpec(file.at("key").bytes(), "AES");
        Vectors parts = file.at("context_parts");
        byte[] context = Sealing.bind(parts.at(0).text(), parts.at(1).text(), parts.at(2).text(), parts.at(3).text());
        assertArrayEquals(file.at("context").bytes(), context);
        assertArrayEquals(file.at("plain").bytes(), Sealing.unseal(key, file.at("sealed").bytes(), context, "it"));
        byte[] own = Sealing.seal(key, file.at("plain").bytes(), context);
        assertArrayEquals(file.at("plain").bytes(), Sealing.unseal(key, own, context, "it"));
        for (int i = 0; i < file.at("refused").size(); i++) {
            Vectors wrong = file.at("refused").at(i);
            Raised.by(
                    ErrorCode.CORRUPT_DATA,
                    wrong.at("why").text(),
                    () -> Sealing.unseal(key, wrong.at("sealed").bytes(), context, "it"));
        }
    }

    @Test
    public void aFileInAFoldersPlaceIsNoFullDisk() throws Exception {
        Path file = folder.newFile("home").toPath();
        for (Path place : new Path[] {file, file.resolve("gallery")}) {
            String told = Raised.by(ErrorCode.CONFIG, "a file", () -> new Folder(place));
            assertFalse(told, told.contains("room"));
        }
        Folder named = new Folder(folder.getRoot().toPath().resolve("no space left"));
        String told = Raised.by(ErrorCode.DATABASE, "not there", () -> named.rename("a", "b"));
        assertFalse(told, told.contains("room"));
    }

    @Test
    public void aRecordMovedDoesNotOpenAndAWipeLeavesNothing() {
        Folder root = new Folder(folder.getRoot().toPath());
        FileKeyProvider keys = new FileKeyProvider(root.folder("keys"));
        Vault vault = new Vault(root.folder("vault"), keys, "gallery");
        vault.put("a", Bytes.utf8("ada"));
        vault.put("b", Bytes.utf8("bo"));
        assertEquals("ada", Bytes.text(vault.get("a")));
        byte[] sealed = root.folder("vault").read("a");
        root.folder("vault").write("b", sealed);
        Raised.by(ErrorCode.CORRUPT_DATA, "moved", () -> vault.get("b"));
        vault.wipe();
        assertNull(vault.get("a"));
        root.folder("vault").write("a", sealed);
        Raised.by(ErrorCode.KEY_LOST, "after the key was destroyed", () -> vault.get("a"));
    }

    @Test
    public void aKeyOutOfReachIsNoDamageAndLosesNothing() {
        Folder root = new Folder(folder.getRoot().toPath());
        AwayKeys keys = new AwayKeys(root.folder("keys"));
        Vault vault = new Vault(root.folder("vault"), keys, "gallery");
        vault.put("a", Bytes.utf8("ada"));
        byte[] sealed = root.folder("vault").read("a");
        keys.away = true;
        Raised.by(ErrorCode.KEY_STORE, "reading", () -> vault.get("a"));
        Raised.by(ErrorCode.KEY_STORE, "writing", () -> vault.put("a", Bytes.utf8("eve")));
        assertFalse("nobody knows it to be lost", vault.isLost());
        assertArrayEquals(sealed, root.folder("vault").read("a"));
        keys.away = false;
        assertEquals("ada", Bytes.text(vault.get("a")));
    }

    @Test
    public void noNewKeyIsMadeOverWhatAnOlderOneSealed() {
        Folder root = new Folder(folder.getRoot().toPath());
        FileKeyProvider keys = new FileKeyProvider(root.folder("keys"));
        Vault vault = new Vault(root.folder("vault"), keys, "gallery");
        vault.put("a", Bytes.utf8("ada"));
        assertTrue(vault.tryMark("a-mark"));
        root.folder("keys").delete("gallery.key");
        assertTrue(vault.isLost());
        Raised.by(ErrorCode.KEY_LOST, "reading", () -> vault.get("a"));
        Raised.by(ErrorCode.KEY_LOST, "writing", () -> vault.put("b", Bytes.utf8("bo")));
        assertNull("no key was made", keys.find("gallery"));
        vault.remove("a");
        vault.put("b", Bytes.utf8("bo")); // nothing is sealed by the other any more
        assertEquals("bo", Bytes.text(vault.get("b")));
    }

    @Test
    public void whatAStopCutShortGoesWithTheRecordWithAWipeAndAtOpening() {
        Folder root = new Folder(folder.getRoot().toPath());
        FileKeyProvider keys = new FileKeyProvider(root.folder("keys"));
        Folder files = root.folder("vault");
        Vault vault = new Vault(files, keys, "gallery");
        vault.put("a", Bytes.utf8("ada"));
        files.append("a", files.read("a"));
        vault.remove("a");
        assertFalse(files.has("a.part") || files.has("a"));
        files.append("b", new byte[] {1});
        vault.wipe();
        assertFalse(files.has("b.part"));
        vault.put("c", Bytes.utf8("cy"));
        files.append("c", new byte[] {1});
        assertEquals("cy", Bytes.text(new Vault(files, keys, "gallery").get("c")));
        assertFalse(files.has("c.part"));
    }

    @Test
    public void aWriteThatFailsLeavesWhatWasThereAndNothingElse() {
        Folder root = new Folder(folder.getRoot().toPath());
        Folder inTheWay = root.folder("a"); // a file cannot take the place of a folder with something in it
        inTheWay.write("b", new byte[] {1});
        Raised.by(ErrorCode.DATABASE, "a folder in its place", () -> root.write("a", new byte[] {2}));
        assertFalse(root.has("a.part"));
        assertTrue(inTheWay.has("b"));
    }

    @Test
    public void whatCannotBeMappedIsRead() throws Exception {
        Path file = Paths.get("/sys/kernel/mm/transparent_hugepage/enabled"); // sysfs gives no pages of its files to anybody
        assumeTrue(Files.isReadable(file));
        try (FileChannel channel = FileChannel.open(file)) {
            assertThrows(IOException.class, () -> channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size()));
        }
        Folder files = new Folder(file.getParent());
        ByteBuffer data = files.map("enabled");
        assertTrue(data.isDirect() && data.isReadOnly());
        byte[] found = new byte[data.remaining()];
        data.get(found);
        assertTrue(found.length > 0);
        assertArrayEquals(Files.readAllBytes(file), found);
        assertTrue(files.hasWhole("enabled", Bytes.hex(Bytes.sha256(found))));
    }

    @Test
    public void aThreadThatIsBeingStoppedReadsAndWritesAllTheSame() {
        Folder files = new Folder(folder.getRoot().toPath());
        for (int time = 1; time <= 2; time++) {
            Thread.currentThread().interrupt();
            try {
                files.write("a", Bytes.utf8("ada"));
                files.append("b", Bytes.utf8("bo"));
                files.append("b", Bytes.utf8("ris"));
                files.finish("b");
                assertEquals("adaboris", Bytes.text(files.read("a")) + Bytes.text(files.read("b")));
                assertTrue(files.hasWhole("b", Bytes.hex(Bytes.sha256(Bytes.utf8("boris")))));
                assertTrue(files.tryEmpty("c"));
                files.rename("b", "d");
                files.delete("d");
                files.delete("c");
            } finally {
                assertTrue("it stays interrupted", Thread.interrupted());
            }
            assertEquals(Collections.singletonList("a"), files.names());
        }
    }
}
