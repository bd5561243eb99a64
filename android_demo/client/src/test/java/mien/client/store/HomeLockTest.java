package mien.client.store;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.Random;
import mien.client.Device;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Still;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** A home is one program's at a time; tests/android tries it with two processes. */
public class HomeLockTest {
    @Rule public final TemporaryFolder temporary = new TemporaryFolder();

    private Folder home(String name) {
        return new Folder(temporary.getRoot().toPath().resolve(name));
    }

    @Test
    public void aHomeIsHeldUntilItIsGivenBack() {
        HomeLock first = new HomeLock(home("one"));
        HomeLock other = new HomeLock(home("two"));
        String told = Raised.by(ErrorCode.IN_USE, "the same home", () -> new HomeLock(home("one")));
        assertTrue(told, told.contains("another program uses this home"));
        Raised.by(ErrorCode.IN_USE, "by another path", () -> new HomeLock(home("two/../one")));
        first.close();
        HomeLock again = new HomeLock(home("one"));
        first.close();
        Raised.by(ErrorCode.IN_USE, "closed twice, which gives back nobody else's", () -> new HomeLock(home("one")));
        again.close();
        other.close();
    }

    @Test
    public void aDeviceHoldsItsHomeAndOneThatCannotOpenDoesNot() {
        Folder home = home("device");
        home.write("rounds", new byte[] {'?'}); // in the way of a folder
        Raised.by(ErrorCode.CONFIG, "no folder", () -> opened(home));
        home.delete("rounds");
        Device device = opened(home);
        Raised.by(ErrorCode.IN_USE, "two devices", () -> opened(home));
        device.close();
        opened(home).close();
    }

    @Test
    public void whereNothingCanBeLockedAHomeOpensAllTheSame() {
        Folder home = home("full");
        home.folder("lock"); // in the way of the file
        HomeLock lock = new HomeLock(home);
        Raised.by(ErrorCode.IN_USE, "in this process", () -> new HomeLock(home));
        lock.close();
        lock.close();
        new HomeLock(home).close();
    }

    @Test
    public void aHomeThatIsInUseIsLeftAsItIs() {
        Folder home = home("device");
        Device device = opened(home);
        home.folder("key").append("identity-key", new byte[] {1}); // that device is in the midst of writing it
        Raised.by(ErrorCode.IN_USE, "two devices", () -> opened(home));
        assertEquals(1, home.folder("key").partSize("identity-key"));
        device.close();
        opened(home).close();
        assertEquals("of a write that a stop cut short", 0, home.folder("key").partSize("identity-key"));
    }

    private static Device opened(Folder home) {
        return Device.at(home.path("")).keysInFiles().clock(new Still(0)).random(new Random(1)).open();
    }
}
