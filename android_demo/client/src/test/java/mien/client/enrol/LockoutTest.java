package mien.client.enrol;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Who fails often waits, longer and longer, and no clock and no restart shortens it. */
public class LockoutTest {
    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private final HeldClock clock = new HeldClock();
    private Folder folder;
    private Vault vault;

    @Before
    public void makeVault() {
        Folder root = new Folder(temporary.getRoot().toPath());
        folder = root.folder("attempts");
        vault = new Vault(folder, new FileKeyProvider(root.folder("keys")), "attempts");
    }

    /** As after a restart of the program. */
    private Lockout lockout() {
        return new Lockout(vault, clock);
    }

    private void fail(int times) {
        for (int i = 0; i < times; i++) {
            clock.sleep(lockout().waitMs());
            lockout().begin();
        }
    }

    @Test
    public void theFifthFailureCostsThirtySecondsAndEachFurtherOneTwiceThat() {
        fail(4);
        assertEquals(0, lockout().waitMs());
        fail(1);
        long expected = 30_000;
        for (int i = 0; i < 12; i++) {
            assertEquals(expected, lockout().waitMs());
            fail(1);
            expected = Math.min(3_600_000, 2 * expected);
        }
        assertEquals("an hour is the longest", 3_600_000, lockout().waitMs());
        assertEquals(17, lockout().failures());
    }

    @Test
    public void duringAWaitNothingIsCompared() {
        fail(5);
        clock.sleep(29_999);
        Raised.by(ErrorCode.RATE_LIMITED, "a comparison", () -> lockout().begin());
        assertEquals("asking costs nothing", 1, lockout().waitMs());
        clock.sleep(1);
        lockout().begin();
        assertEquals(60_000, lockout().waitMs());
    }

    @Test
    public void clocksSetForwardGiveNothing() {
        fail(5);
        clock.unixMs += 86_400_000;
        assertEquals(30_000, lockout().waitMs());
        clock.monotonicMs += 10_000;
        assertEquals(20_000, lockout().waitMs());
        clock.monotonicMs += 20_000;
        assertEquals(0, lockout().waitMs());
    }

    @Test
    public void aClockSetBackBeginsTheWaitAnew() {
        fail(5);
        clock.sleep(20_000);
        clock.unixMs -= 86_400_000;
        assertEquals(30_000, lockout().waitMs());
        clock.sleep(29_000);
        assertEquals("it goes on from there, and ends", 1000, lockout().waitMs());
        clock.sleep(1000);
        assertEquals(0, lockout().waitMs());
    }

    @Test
    public void aPhoneStartedAnewBeginsTheWaitAnew() {
        fail(5);
        clock.sleep(20_000);
        clock.monotonicMs = 100;
        assertEquals(30_000, lockout().waitMs());
        clock.monotonicMs += 40_000; // so long after its start as before
        assertEquals("the wall clock has to say so too", 30_000, lockout().waitMs());
        clock.unixMs += 40_000;
        assertEquals(0, lockout().waitMs());
    }

    @Test
    public void whatIsRecognisedForgetsFailures() {
        fail(7);
        lockout().clear();
        assertEquals(0, lockout().waitMs());
        assertEquals(0, lockout().failures());
        fail(4);
        assertEquals(0, lockout().waitMs());
    }

    @Test
    public void whatWasNotComparedDoesNotCount() {
        fail(4);
        lockout().begin();
        lockout().undo();
        assertEquals(4, lockout().failures());
        assertEquals(0, lockout().waitMs());
        lockout().begin();
        assertEquals(30_000, lockout().waitMs());
    }

    @Test
    public void aRecordThatWasTamperedWithCostsTheLongestWait() {
        fail(5);
        byte[] sealed = folder.read("lockout");
        sealed[20] ^= 1;
        folder.write("lockout", sealed);
        assertEquals(3_600_000, lockout().waitMs());
        clock.sleep(3_600_000);
        assertEquals(0, lockout().waitMs());
        vault.put("lockout", new byte[] {1, 0, 0});
        assertEquals("one that is cut off", 3_600_000, lockout().waitMs());
        vault.put("lockout", new byte[29]);
        assertEquals("one of another form", 3_600_000, lockout().waitMs());
        lockout().clear();
        assertEquals(0, lockout().waitMs());
    }

    @Test
    public void twoAtOnceCountTogether() {
        Lockout one = lockout();
        Lockout other = lockout();
        assertEquals(0, one.waitMs());
        assertEquals(0, other.waitMs());
        for (int i = 0; i < 5; i++) {
            (i % 2 == 0 ? one : other).begin();
        }
        Raised.by(ErrorCode.RATE_LIMITED, "the one that did not count last", other::begin);
        assertTrue(one.waitMs() > 0);
    }
}
