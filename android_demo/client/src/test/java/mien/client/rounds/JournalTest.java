package mien.client.rounds;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.people.Gallery;
import mien.client.people.Numbers;
import mien.client.people.StayingOut;
import mien.client.store.AwayKeys;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.wire.RoundRef;
import mien.client.wire.Texts;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** What an owner is told of the past, and what the coordinator is told when nobody agrees any more. */
public class JournalTest {
    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private Folder root;
    private Vault vault;

    @Before
    public void open() {
        root = new Folder(temporary.getRoot().toPath());
        vault = new Vault(root.folder("journal"), new FileKeyProvider(root.folder("keys")), "journal");
    }

    @Test
    public void theNewestComesFirstAndWhatRepeatsIsOneEntry() {
        Journal journal = new Journal(vault);
        journal.note(Outcome.notNow("charging"), 1);
        journal.note(Outcome.notNow("charging"), 2);
        journal.note(new MienException(ErrorCode.UNREACHABLE, "away"), 3);
        journal.note(Outcome.counted(new RoundRef("task", 4, 1), "model", 20, ""), 4);
        journal.count(10, 300);
        journal.count(5, 0);
        Journal again = new Journal(vault);
        assertEquals(3, again.entries().size());
        Journal.Entry newest = again.entries().get(0);
        assertEquals(Outcome.Kind.COUNTED, newest.kind);
        assertEquals("round 4", newest.round);
        assertEquals(20, newest.numReports);
        assertEquals("unreachable", again.entries().get(1).code);
        Journal.Entry oldest = again.entries().get(2);
        assertEquals("charging", oldest.reason);
        assertEquals(2, oldest.times);
        assertEquals(2, oldest.unixMs);
        assertEquals(15, again.sentBytes());
        assertEquals(300, again.receivedBytes());
    }

    @Test
    public void whatHappensWhileTheKeyIsOutOfReachIsWrittenLater() {
        AwayKeys keys = new AwayKeys(root.folder("keys"));
        Journal journal = new Journal(new Vault(root.folder("journal"), keys, "journal"));
        journal.count(1, 2);
        keys.away = true;
        journal.note(Outcome.notNow("charging"), 1);
        journal.count(10, 300);
        keys.away = false;
        journal.note(new MienException(ErrorCode.UNREACHABLE, "away"), 3);
        Journal again = new Journal(vault);
        assertEquals(2, again.entries().size());
        assertEquals("charging", again.entries().get(1).reason);
        assertEquals(11, again.sentBytes());
        root.folder("keys").delete("journal.key");
        assertTrue("a diary whose key is lost stops nobody", journal.entries().isEmpty());
        journal.count(4, 4);
        assertEquals(4, new Journal(vault).sentBytes());
    }

    @Test
    public void aLieIsToldOnceHoweverOftenItIsRepeated() {
        Journal journal = new Journal(vault);
        for (int round = 1; round <= 200; round++) {
            RoundRef ref = new RoundRef("task", round, 1);
            journal.note(Outcome.of(Outcome.Kind.FAILED, ref, ErrorCode.TRANSPARENCY.code(), "a fork"), 2 * round);
            journal.note(Outcome.wait(0, "nothing to do " + round % 2), 2 * round + 1);
        }
        int told = 0;
        for (Journal.Entry entry : journal.entries()) {
            if (entry.kind == Outcome.Kind.FAILED) {
                told++;
                assertEquals(200, entry.times);
                assertEquals(400, entry.unixMs);
            }
        }
        assertEquals(1, told);
        RoundRef ref = new RoundRef("task", 9, 1);
        journal.note(Outcome.of(Outcome.Kind.FAILED, ref, ErrorCode.TRANSPARENCY.code(), "another lie"), 500);
        assertEquals("another lie", journal.entries().get(0).reason);
        assertEquals(1, journal.entries().get(0).times);
    }

    @Test
    public void itEndsAndADamagedOneBeginsAnew() {
        Journal journal = new Journal(vault);
        for (int i = 0; i < 150; i++) {
            journal.note(Outcome.wait(0, "reason " + i), i);
        }
        assertEquals(100, journal.entries().size());
        assertEquals("reason 149", journal.entries().get(0).reason);
        root.folder("journal").write("journal", new byte[40]);
        assertEquals(0, journal.entries().size());
        journal.note(Outcome.wait(0, "again"), 1);
        assertEquals(1, journal.entries().size());
    }

    @Test
    public void aDeviceStaysOutOnceTheLastConsentHasEnded() {
        Vault people = new Vault(root.folder("gallery"), new FileKeyProvider(root.folder("keys")), "gallery");
        Gallery gallery = new Gallery(people, new Numbers(root));
        StayingOut out = new StayingOut(root, gallery);
        for (String name : new String[] {"Ada", "Bo"}) {
            gallery.enrol(name, new byte[][] {{1}}, new float[] {1}, "model", 1, true);
        }
        assertFalse("nobody has to be told that it takes part", out.isToTell());
        out.before(1);
        gallery.setConsent(1, false, 2);
        assertFalse("Bo agrees", out.wanted());
        out.before(2);
        assertFalse("the power is cut before it is withdrawn: Bo still agrees", out.wanted());
        gallery.remove(2);
        assertTrue(new StayingOut(root, gallery).isToTell());
        out.told(true);
        assertTrue(out.wanted());
        assertFalse(out.isToTell());
        gallery.setConsent(1, true, 3);
        assertTrue("also where the power is cut before it is noted", out.isToTell());
        assertFalse(out.wanted());
        out.afterAgreement();
        out.told(false);
        assertFalse(out.isToTell());
        out.beforeWipe();
        gallery.wipe();
        assertTrue(out.isToTell());
    }

    @Test
    public void textsOfAnyLengthAreKeptWithoutTheirEnds() {
        char[] many = new char[70_000];
        Arrays.fill(many, '\u20ac');
        String text = new String(many);
        Journal journal = new Journal(vault);
        journal.note(Outcome.wait(1, text), 1);
        journal.note(Outcome.of(Outcome.Kind.NOT_COUNTED, new RoundRef(text, 1, 1), text, text), 2);
        journal.note(new MienException(ErrorCode.LATE, text), 3);
        assertEquals(3, journal.entries().size());
        assertTrue(text.startsWith(journal.entries().get(0).reason));
        assertEquals(Texts.MOST, journal.entries().get(1).code.length());
    }

    @Test
    public void aThreadThatIsBeingStoppedWritesAllTheSame() {
        Journal journal = new Journal(vault);
        for (int time = 1; time <= 3; time++) {
            Thread.currentThread().interrupt();
            try {
                journal.count(10, 1);
                journal.note(Outcome.counted(new RoundRef("task", time, 1), "model", 20, ""), time);
                journal.note(new MienException(ErrorCode.UNREACHABLE, "away"), time);
            } finally {
                assertTrue("it stays interrupted", Thread.interrupted());
            }
            assertEquals(2 * time, journal.entries().size());
            assertEquals(10 * time, journal.sentBytes());
        }
    }
}
