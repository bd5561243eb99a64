package mien.client.people;

import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.MienException;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;

/**
 * Whether the coordinator is to leave this device out of rounds, and whether it has been told.
 *
 * <p>It is as soon as the last person who agreed to training no longer does, until somebody agrees again. It outlives a
 * wipe of the gallery, so that what was withdrawn offline is told at the next connection.
 */
public final class StayingOut {
    public static final String FILE = "participation.json";
    private static final String WANTED = "wanted";
    private static final String TOLD = "told";

    private static final byte[] NOTHING = Bytes.utf8("{\"wanted\":false,\"told\":false}");

    private final Folder folder;
    private final Gallery gallery;

    /** Remembers it in a file of the home. */
    public StayingOut(Folder folder, Gallery gallery) {
        this.folder = folder;
        this.gallery = gallery;
    }

    /**
     * Call it before the consent of {@code leaving} ends, so that no crash keeps it from being told. It is wanted once
     * nobody agrees any more, so nobody else's record is read for it.
     */
    public synchronized void before(int leaving) {
        if (gallery.mayTrain(leaving)) {
            set(WANTED, true);
        }
    }

    /** Call it before the gallery is wiped. */
    public synchronized void beforeWipe() {
        set(WANTED, true);
    }

    /** Call it after somebody has agreed. */
    public synchronized void afterAgreement() {
        set(WANTED, false);
    }

    /** Returns whether this device asks to be left out of rounds, told or not. */
    public synchronized boolean wanted() {
        Fields facts = facts();
        return (facts == null || facts.flag(WANTED)) && !gallery.somebodyTrains();
    }

    /** Returns whether the coordinator does not know it yet. */
    public synchronized boolean isToTell() {
        Fields facts = facts();
        return facts == null || wanted() != facts.flag(TOLD);
    }

    /** Remembers what the coordinator was told. */
    public synchronized void told(boolean staysOut) {
        if (facts() == null) {
            write(staysOut, staysOut);
        } else {
            set(TOLD, staysOut);
        }
    }

    /** Returns what is noted; null for a damaged note: then it is as people agree now, and is to be told. */
    private Fields facts() {
        byte[] data = folder.read(FILE);
        try {
            Fields facts = Json.object(data == null ? NOTHING : data, FILE);
            facts.flag(WANTED);
            facts.flag(TOLD);
            return facts;
        } catch (MienException error) {
            return null;
        }
    }

    private void set(String name, boolean value) {
        Fields facts = facts();
        if (facts == null || facts.flag(name) == value) {
            return;
        }
        write(name.equals(WANTED) ? value : facts.flag(WANTED), name.equals(TOLD) ? value : facts.flag(TOLD));
    }

    /** Where there is no room the note is emptied, as if it were damaged: nobody has to stay for want of room. */
    private void write(boolean wanted, boolean told) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put(WANTED, wanted);
        facts.put(TOLD, told);
        try {
            folder.write(FILE, Bytes.utf8(Json.write(facts)));
        } catch (MienException full) {
            folder.tryEmpty(FILE);
        }
    }
}
