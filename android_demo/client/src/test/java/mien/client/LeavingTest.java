package mien.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.util.Random;
import javax.crypto.SecretKey;
import mien.client.people.StayingOut;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.KeyProvider;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Neither a full disk nor a damaged file keeps anybody from withdrawing, being removed, wiping or leaving. */
public class LeavingTest {
    private static final String PARTICIPATION = StayingOut.FILE;
    private static final String[] DAMAGED = {
        PARTICIPATION, "rounds/pending", "sums/sum-1", "gallery/templates", "gallery/state-0-1", "gallery/person-000001"
    };

    /** Keys of a device on which no record can be written once its disk is full. */
    private final class Keys implements KeyProvider {
        private final FileKeyProvider keys;

        Keys(Folder folder) {
            keys = new FileKeyProvider(folder);
        }

        @Override
        public SecretKey find(String name) {
            checkRoom();
            return keys.find(name);
        }

        @Override
        public SecretKey make(String name) {
            checkRoom();
            return keys.make(name);
        }

        private void checkRoom() {
            for (StackTraceElement caller : new Throwable().getStackTrace()) {
                boolean writes = caller.getClassName().endsWith(".Vault") && caller.getMethodName().equals("put");
                if (full && writes) {
                    throw new MienException(ErrorCode.DISK_FULL, "make room");
                }
            }
        }

        @Override
        public void destroy(String name) {
            keys.destroy(name);
        }
    }

    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private Folder home;
    private Device device;
    private boolean full;

    @Before
    public void open() {
        again("first");
    }

    private void again(String name) {
        full = false;
        home = new Folder(temporary.getRoot().toPath()).folder(name.replace('/', '-'));
        device = opened();
        for (String person : new String[] {"Ada", "Bo"}) {
            device.gallery.enrol(person, new byte[][] {{1}}, new float[] {1}, "model", 1000, true);
        }
    }

    /** Returns the device after a restart of the program. */
    private Device opened() {
        if (device != null) {
            device.close();
        }
        return Device.at(home.path(""))
                .keysInFiles()
                .keys(new Keys(home.folder("keys")))
                .clock(new Still(1000))
                .random(new Random(1))
                .open();
    }

    private void fill() {
        full = true;
        home.folder(PARTICIPATION + ".part").write("in-the-way", new byte[] {1});
    }

    @Test
    public void onAFullDiskAPersonWithdrawsAndStaysSo() {
        fill();
        device.setConsent(2, false);
        assertFalse(device.gallery.person(2).trains || device.gallery.stillTrains(2));
        assertFalse("Ada agrees", device.status().staysOut);
        device.setConsent(1, false);
        device = opened();
        Status status = device.status();
        assertEquals(2, status.numPeople);
        assertEquals(0, status.numAgreed);
        assertTrue("what could not be noted is told all the same", status.staysOut);
        full = false;
        device.setConsent(2, true);
        device = opened();
        assertTrue(device.gallery.person(2).trains);
        assertEquals(1, device.status().numAgreed);
        assertFalse(device.status().staysOut);
    }

    @Test
    public void onAFullDiskPeopleAreRemoved() {
        fill();
        device.remove(1);
        device.remove(2);
        assertEquals(0, device.status().numPeople);
        assertTrue(device.status().staysOut);
        assertNull("no template stays for want of room", device.gallery.modelId());
    }

    @Test
    public void onAFullDiskADeviceIsWiped() {
        fill();
        device.setConsent(2, false);
        device.wipe();
        assertTrue(home.folder("gallery").names().isEmpty());
        assertEquals(0, device.status().numPeople);
        assertTrue(device.status().staysOut);
    }

    @After
    public void close() {
        device.close();
    }

    private void damage(String file) {
        String[] parts = file.split("/");
        (parts.length == 1 ? home : home.folder(parts[0])).write(parts[parts.length - 1], new byte[] {'?', 1, 2});
    }

    @Test
    public void besideADamagedFileADeviceSaysWhereItStands() {
        for (String file : DAMAGED) {
            again("status " + file);
            damage(file);
            Status status = device.status();
            boolean isPerson = file.startsWith("gallery/person");
            assertEquals(file, 2, status.numPeople);
            assertEquals(file, isPerson ? 1 : 0, status.numDamaged);
            assertEquals(file, isPerson ? 1 : 2, status.numAgreed);
        }
    }

    @Test
    public void whoseRecordIsDamagedWithdraws() {
        damage("gallery/person-000001");
        device.setConsent(2, false);
        device.setConsent(1, false);
        assertEquals(0, device.status().numAgreed);
        assertTrue(device.status().staysOut);
        assertTrue(device.people().get(0).isDamaged && !device.people().get(1).isDamaged);
    }

    @Test
    public void besideADamagedFileAPersonWithdraws() {
        for (String file : DAMAGED) {
            again("consent " + file);
            damage(file);
            device.setConsent(2, false);
            assertFalse(file, device.gallery.stillTrains(2));
        }
    }

    @Test
    public void besideADamagedFilePeopleAreRemovedAlsoWhoCannotBeRead() {
        for (String file : DAMAGED) {
            again("remove " + file);
            damage(file);
            device.remove(2);
            device.remove(1);
            device = opened();
            assertEquals(file, 0, device.status().numPeople);
            assertTrue(file, device.status().staysOut);
        }
    }

    @Test
    public void besideADamagedFileADeviceIsWipedAndLeaves() {
        for (String file : DAMAGED) {
            again("wipe " + file);
            damage(file);
            device.wipe();
            Status status = device.status();
            assertEquals(file, 0, status.numPeople);
            assertEquals(file, "", status.pendingRound);
            assertTrue(file, status.staysOut);
        }
    }

    @Test
    public void aDamagedNoteOfParticipationIsWhatPeopleSayAndIsTold() {
        damage(PARTICIPATION);
        StayingOut out = new StayingOut(home, device.gallery);
        assertTrue("whatever was told before", out.isToTell());
        assertFalse("both agree", out.wanted());
        device.setConsent(1, false);
        device.setConsent(2, false);
        assertTrue(out.isToTell() && out.wanted());
        out.told(true);
        assertTrue(out.wanted());
        assertFalse(out.isToTell());
    }

    @Test
    public void aDamagedUpdateIsDropped() {
        damage("rounds/pending");
        assertEquals("", device.status().pendingRound);
        assertFalse(home.folder("rounds").has("pending"));
    }
}
