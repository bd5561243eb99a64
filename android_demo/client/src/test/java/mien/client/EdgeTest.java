package mien.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import mien.client.join.FileIdentityKeys;
import mien.client.secagg.Profile;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.tasks.Agreement;
import mien.client.wire.Bytes;
import mien.client.wire.Json;
import org.junit.After;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Whatever goes wrong, an app hears of it by an error with a code. */
public class EdgeTest {
    @Rule public final TemporaryFolder temporary = new TemporaryFolder();

    private Device device;

    @After
    public void close() {
        if (device != null) {
            device.close();
        }
    }

    /** Returns a device of the same home again. */
    private Device device() {
        close();
        Folder home = new Folder(temporary.getRoot().toPath().resolve("home"));
        Folder keys = new Folder(temporary.getRoot().toPath().resolve("keys"));
        FileKeyProvider provider = new FileKeyProvider(keys);
        FileIdentityKeys identity = new FileIdentityKeys(new Vault(home.folder("identity"), provider, "identity"));
        device = Device.at(home.path("")).keys(provider).identityKeys(identity).clock(new Still(0)).random(new Random(1)).open();
        return device;
    }

    @Test
    public void whatNobodyForesawIsAnErrorWithACode() {
        for (Throwable thrown :
                Arrays.asList(
                        new ArithmeticException("/ by zero"),
                        new NumberFormatException("Infinite"),
                        new IllegalStateException("text"),
                        new OutOfMemoryError("heap"),
                        new StackOverflowError())) {
            Device device = device();
            Agreement agreement = new Agreement(3, EnumSet.allOf(Profile.class));
            Raised.by(
                    ErrorCode.OTHER,
                    thrown.toString(),
                    () -> device.participate(agreement, () -> sneak(thrown), null));
            assertEquals("other", device.journal.entries().get(0).code);
            device.journal.wipe();
        }
    }

    @SuppressWarnings("unchecked")
    private static <E extends Throwable> List<String> sneak(Throwable thrown) throws E {
        throw (E) thrown;
    }

    @Test
    public void aDamagedIdentityIsAnErrorWithACode() {
        Device device = device();
        new Folder(temporary.getRoot().toPath().resolve("home"))
                .write("identity.json", Bytes.utf8("{\"sha256\":\"00\",\"x\":1.5}"));
        Raised.by(ErrorCode.CORRUPT_DATA, "a number that is not whole", device::identity);
        assertTrue(device.hasJoined());
        Raised.by(ErrorCode.CORRUPT_DATA, "a number", () -> Json.write(Collections.singletonMap("x", 1.5)));
    }

    @Test
    public void aNameThatIsTooLongIsRefused() {
        char[] name = new char[70_000];
        Arrays.fill(name, 'x');
        Raised.by(ErrorCode.CONFIG, "the name", () -> device().enrol(new String(name), new byte[0][], false));
    }
}
