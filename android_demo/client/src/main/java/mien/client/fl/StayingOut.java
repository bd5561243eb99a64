package mien.client.fl;

import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
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

    private final Folder folder;
    private final Gallery gallery;

    public StayingOut(Folder folder, Gallery gallery) {
        this.folder = folder;
        this.gallery = gallery;
    }

    /** Call it before the consent of {@code leaving} ends, so that no crash keeps it from being told. */
    public synchronized void before(int leaving) {
        boolean agreed = false;
        for (Gallery.Person person : gallery.people()) {
            agreed |= person.trains && person.id != leaving;
        }
        if (!agreed && gallery.stillTrains(leaving)) {
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
        return is(WANTED) && !somebodyAgrees();
    }

    /** Returns whether the coordinator does not know it yet. */
    public synchronized boolean isToTell() {
        return wanted() != is(TOLD);
    }

    /** Remembers what the coordinator was told. */
    public synchronized void told(boolean staysOut) {
        set(TOLD, staysOut);
    }

    private boolean somebodyAgrees() {
        for (Gallery.Person person : gallery.people()) {
            if (person.trains) {
                return true;
            }
        }
        return false;
    }

    private boolean is(String name) {
        byte[] data = folder.read(FILE);
        return data != null && Json.object(data, FILE).flag(name);
    }

    private void set(String name, boolean value) {
        if (is(name) == value) {
            return;
        }
        Map<String, Object> facts = new LinkedHashMap<>();
        for (String each : new String[] {WANTED, TOLD}) {
            facts.put(each, each.equals(name) ? value : is(each));
        }
        folder.write(FILE, Bytes.utf8(Json.write(facts)));
    }
}
