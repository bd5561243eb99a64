package mien.client.rounds;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertTrue;

import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.people.Gallery;
import mien.client.people.Numbers;
import mien.client.secagg.Profile;
import mien.client.store.AwayKeys;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Records;
import mien.client.store.Vault;
import mien.client.tasks.Agreement;
import mien.client.wire.Bytes;
import mien.client.wire.RoundRef;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** What was trained is of the agreement that it was trained under, and of no later one. */
public class AgreedTest {
    /** Something that ends an agreement, and may begin another, even under the same number. */
    interface Change {
        void of(Gallery gallery);
    }

    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private Folder root;
    private Vault people;
    private Vault rounds;
    private Gallery gallery;

    @Before
    public void open() {
        root = new Folder(temporary.getRoot().toPath());
        FileKeyProvider keys = new FileKeyProvider(root.folder("keys"));
        people = new Vault(root.folder("gallery"), keys, "gallery");
        rounds = new Vault(root.folder("rounds"), keys, "rounds");
        gallery = opened();
        enrol(gallery, "Ada");
        enrol(gallery, "Bo");
    }

    private Gallery opened() {
        return new Gallery(people, new Numbers(root));
    }

    private static int enrol(Gallery gallery, String name) {
        return gallery.enrol(name, new byte[][] {{1}}, new float[] {1}, "model", 1000, true);
    }

    private Pending trained(int person) {
        Map<Integer, Long> agreed = Collections.singletonMap(person, gallery.person(person).mark);
        return new Pending(
                new RoundRef("task", 1, 1), new byte[] {1}, "model", agreed, new byte[] {2}, new LinkedHashMap<>(),
                new byte[32], new byte[32]);
    }

    /** What is stored of the model by the time of a restart may be another story than the one that was trained on. */
    @Test
    public void aPendingRoundKeepsTheStatementOfWhatWasTrainedOn() {
        byte[] statement = new byte[32];
        Arrays.fill(statement, (byte) 7);
        Map<Integer, Long> agreed = Collections.singletonMap(1, gallery.person(1).mark);
        RoundRef ref = new RoundRef("task", 1, 1);
        new Pending(ref, new byte[] {1}, "model", agreed, new byte[] {2}, new LinkedHashMap<>(), statement, new byte[32])
                .keep(rounds);
        assertArrayEquals(statement, Pending.load(rounds).statement);
    }

    @Test
    public void aPendingRoundOfAnEarlierVersionIsOfAnyPictures() {
        byte[] pictures = new byte[32];
        Arrays.fill(pictures, (byte) 5);
        RoundRef ref = new RoundRef("task", 1, 1);
        Map<Integer, Long> agreed = Collections.singletonMap(1, gallery.person(1).mark);
        new Pending(ref, new byte[] {1}, "model", agreed, new byte[] {2}, new LinkedHashMap<>(), new byte[32], pictures)
                .keep(rounds);
        assertArrayEquals(pictures, Pending.load(rounds).pictures);
        byte[] record = rounds.get("pending");
        rounds.put("pending", Arrays.copyOf(record, record.length - 4 - pictures.length));
        Pending older = Pending.load(rounds);
        assertArrayEquals(OwnSum.ANY_PICTURES, older.pictures);
        assertEquals(agreed, older.agreed);
    }

    private Participant participant() {
        return new Participant(null, gallery, rounds, null, null, null, null, null, null, null, null, null);
    }

    private Map<String, Change> changes() {
        Map<String, Change> changes = new LinkedHashMap<>();
        changes.put("withdrawn", gallery -> gallery.setConsent(2, false, 1000));
        changes.put(
                "withdrawn, agreed again",
                gallery -> {
                    gallery.setConsent(2, false, 1000);
                    gallery.setConsent(2, true, 1000);
                });
        changes.put("removed", gallery -> gallery.remove(2));
        changes.put(
                "removed, and the number given again for want of the note",
                gallery -> {
                    gallery.remove(2);
                    root.delete(Numbers.FILE);
                    assertEquals(2, enrol(gallery, "Cy"));
                });
        changes.put("wiped", Gallery::wipe);
        changes.put(
                "wiped, and the number given again for want of the note",
                gallery -> {
                    gallery.wipe();
                    root.delete(Numbers.FILE);
                    enrol(gallery, "Cy");
                    assertEquals(2, enrol(gallery, "Di"));
                });
        return changes;
    }

    @Test
    public void nothingOfAnAgreementThatEndedInTrainingIsKept() throws Exception {
        for (Map.Entry<String, Change> change : changes().entrySet()) {
            Pending pending = trained(2);
            change.getValue().of(gallery);
            Raised.by(ErrorCode.CONFIG, change.getKey(), () -> participant().keep(pending));
            assertFalse(change.getKey(), gallery.stillAgree(pending.agreed));
            assertNull(change.getKey(), rounds.get("pending"));
            again();
        }
    }

    @Test
    public void whatWasKeptBeforeAPowerCutGoesAtOpening() throws Exception {
        for (Map.Entry<String, Change> change : changes().entrySet()) {
            Pending pending = trained(2);
            participant().keep(pending);
            assertEquals(pending.agreed, Pending.load(rounds).agreed);
            Participant.forgetWithdrawn(gallery, rounds);
            assertNotNull("they agree", Pending.load(rounds));
            change.getValue().of(gallery);
            Participant.forgetWithdrawn(opened(), rounds);
            assertNull(change.getKey(), rounds.get("pending"));
            again();
        }
    }

    private void again() {
        people.wipe();
        root.delete(Numbers.FILE);
        enrol(gallery, "Ada");
        enrol(gallery, "Bo");
    }

    @Test
    public void aPendingRoundWaitsForAKeyThatIsOutOfReach() {
        AwayKeys away = new AwayKeys(root.folder("keys"));
        Vault rounds = new Vault(root.folder("rounds"), away, "rounds");
        participant().keep(trained(2));
        away.away = true;
        Raised.by(ErrorCode.KEY_STORE, "loading", () -> Pending.load(rounds));
        Raised.by(ErrorCode.KEY_STORE, "at opening", () -> Participant.forgetWithdrawn(gallery, rounds));
        Gallery unread = new Gallery(new Vault(root.folder("gallery"), away, "gallery"), new Numbers(root));
        Raised.by(ErrorCode.KEY_STORE, "who agrees", () -> Participant.forgetWithdrawn(unread, this.rounds));
        away.away = false;
        assertNotNull(Pending.load(rounds));
        root.folder("keys").delete("rounds.key");
        assertNull("for good: it can never be sent", Pending.load(rounds));
    }

    @Test
    public void aDiskThatFailsForAMomentHasRefusedNothing() throws Exception {
        byte[] task = Bytes.utf8(Vectors.load("golden/client/sums.json").at("tasks").at(0).text());
        Agreement agreement =
                new Agreement(4, EnumSet.of(Profile.MALICIOUS_SERVER), Collections.<String>emptySet(), 1, 24);
        Map<Integer, Long> agreed = Collections.singletonMap(2, gallery.person(2).mark);
        Pending pending =
                new Pending(
                        new RoundRef("task", 1, 1), task, "model", agreed, new byte[] {2}, new LinkedHashMap<>(),
                        new byte[32], new byte[32]);
        Path folder = temporary.getRoot().toPath().resolve("gallery");
        Path aside = folder.resolveSibling("aside");
        Files.move(folder, aside);
        Files.createDirectory(folder);
        try (DirectoryStream<Path> files = Files.newDirectoryStream(aside)) {
            for (Path each : files) {
                Files.createDirectory(folder.resolve(each.getFileName())); // nothing that can be read as a file
            }
        }
        Raised.by(ErrorCode.DATABASE, "nobody can say", () -> with(opened(), agreement).withdrawn(pending));
        try (DirectoryStream<Path> files = Files.newDirectoryStream(folder)) {
            for (Path each : files) {
                Files.delete(each);
            }
        }
        Files.delete(folder);
        Files.move(aside, folder);
        assertNull("they agree", with(opened(), agreement).withdrawn(pending));
        gallery.setConsent(2, false, 1000);
        assertEquals(ErrorCode.CONFIG, with(gallery, agreement).withdrawn(pending).code());
    }

    private Participant with(Gallery gallery, Agreement agreement) {
        return new Participant(null, gallery, rounds, null, null, null, agreement, null, null, null, null, null);
    }

    @Test
    public void keysOfASumWaitOnWhereTheOwnerDoesNotAgreeOrNobodyCanSay() throws Exception {
        AwayKeys away = new AwayKeys(root.folder("keys"));
        Gallery unread = new Gallery(new Vault(root.folder("gallery"), away, "gallery"), new Numbers(root));
        byte[] task = Bytes.utf8(Vectors.load("golden/client/sums.json").at("tasks").at(0).text());
        Agreement agreement =
                new Agreement(4, EnumSet.of(Profile.MALICIOUS_SERVER), Collections.<String>emptySet(), 1, 24);
        Map<Integer, Long> agreed = Collections.singletonMap(2, gallery.person(2).mark);
        RoundRef ref = new RoundRef("task", 1, 1);
        Pending pending =
                new Pending(
                        ref, task, "model", agreed, new byte[] {2}, new LinkedHashMap<>(), new byte[32], new byte[32]);
        Attempts attempts = new Attempts(rounds);
        Participant participant =
                new Participant(null, unread, rounds, attempts, null, null, agreement, null, null, null, null, null);
        MaskedPart part =
                new MaskedPart(null, null, null, null, null, null, null, ref, "model", null, null, new byte[] {2});
        attempts.hold(part);
        away.away = true;
        Raised.by(ErrorCode.KEY_STORE, "who agrees", () -> participant.heldFor(pending, false));
        assertTrue(attempts.holds(ref));
        away.away = false;
        assertSame(part, participant.heldFor(pending, false));
        assertNull("they are handed over once", participant.heldFor(pending, false));
        attempts.hold(part);
        unread.setConsent(2, false, 2000);
        Raised.by(ErrorCode.CONFIG, "withdrawn", () -> participant.heldFor(pending, false));
        assertTrue(attempts.holds(ref));
        assertSame("what counts is in the sum", part, participant.heldFor(pending, true));
    }

    @Test
    public void withdrawingNeedsNoKey() {
        AwayKeys away = new AwayKeys(root.folder("keys"));
        Gallery unread = new Gallery(new Vault(root.folder("gallery"), away, "gallery"), new Numbers(root));
        away.away = true;
        Raised.by(ErrorCode.KEY_STORE, "it is said that something stays to be removed", () -> unread.setConsent(2, false, 2000));
        assertFalse(opened().stillTrains(2));
        assertTrue(opened().stillTrains(1));
        away.away = false;
        unread.setConsent(2, false, 2000);
        unread.setConsent(2, true, 3000);
        assertTrue(opened().stillTrains(2));
    }

    @Test
    public void whatOthersDoAndMorePicturesEndNoAgreement() {
        Pending pending = trained(2);
        gallery.setConsent(2, true, 2000);
        gallery.add(2, new byte[][] {{3}}, new float[] {1}, "model");
        gallery.remove(1);
        enrol(gallery, "Cy");
        gallery.reembed("next", crops -> new float[] {2});
        assertTrue(opened().stillAgree(pending.agreed));
        participant().keep(pending);
        people.put("person-000002", new byte[] {9});
        assertFalse("a damaged record agrees to nothing", gallery.stillAgree(pending.agreed));
    }

    @Test
    public void peopleOfAnEarlierVersionAreRead() {
        people.put(
                "person-000002",
                Records.bytes(
                        out -> {
                            out.writeByte(2);
                            out.writeInt(2);
                            out.writeUTF("Bo");
                            out.writeLong(1000);
                            out.writeLong(1500);
                            out.writeInt(1);
                            out.writeInt(1);
                            Records.write(out, new byte[] {1});
                        }));
        assertTrue(gallery.person(2).trains);
        Pending pending = trained(2);
        assertTrue(gallery.stillAgree(pending.agreed));
        gallery.setConsent(2, false, 2000);
        gallery.setConsent(2, true, 1500);
        assertFalse(gallery.stillAgree(pending.agreed));
    }
}
