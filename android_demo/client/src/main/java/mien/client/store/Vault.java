package mien.client.store;

import java.util.ArrayList;
import java.util.List;
import javax.crypto.SecretKey;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Sealed records in a folder, each bound to its name: one file a record, replaced as a whole. */
public final class Vault {
    private final Folder folder;
    private final KeyProvider keys;
    private final String label;

    /** Keeps records in a folder, sealed by the key of that label, which is made with the first record. */
    public Vault(Folder folder, KeyProvider keys, String label) {
        this.folder = folder;
        this.keys = keys;
        this.label = label;
        folder.deleteParts(); // of writes that a stop cut short
    }

    /**
     * Returns a record's bytes, null where there is none. Throws CORRUPT_DATA for one that was changed, KEY_LOST where the
     * key is gone for good, KEY_STORE and KEY_LOCKED where it is out of reach for now.
     */
    public byte[] get(String name) {
        byte[] sealed = folder.read(name);
        if (sealed == null) {
            return null;
        }
        SecretKey key = keys.find(label);
        if (key == null) {
            throw lost();
        }
        return Sealing.unseal(key, sealed, context(name), "a stored record");
    }

    /** Stores a record; throws as {@link #get}: a new key is never made over records that an older one sealed. */
    public void put(String name, byte[] plain) {
        SecretKey key = holdsRecords() ? keys.find(label) : findOrMake();
        if (key == null) {
            throw lost();
        }
        folder.write(name, Sealing.seal(key, plain, context(name)));
    }

    /** Nothing is sealed by a key that is gone here. */
    private SecretKey findOrMake() {
        try {
            SecretKey key = keys.find(label);
            return key == null ? keys.make(label) : key;
        } catch (MienException error) {
            if (error.code() != ErrorCode.KEY_LOST) {
                throw error;
            }
            return keys.make(label);
        }
    }

    /** Returns whether the key of what is here is gone for good; throws KEY_STORE and KEY_LOCKED while nobody knows. */
    public boolean isLost() {
        try {
            return holdsRecords() && keys.find(label) == null;
        } catch (MienException error) {
            if (error.code() != ErrorCode.KEY_LOST) {
                throw error;
            }
            return true;
        }
    }

    private boolean holdsRecords() {
        for (String name : folder.names()) {
            if (!folder.isEmpty(name)) {
                return true;
            }
        }
        return false;
    }

    private static MienException lost() {
        return new MienException(
                ErrorCode.KEY_LOST, "the key of what is stored is gone for good; wipe, and enrol again");
    }

    /** Sets a mark, which takes no room and is not sealed; returns whether that could be done. */
    public boolean tryMark(String name) {
        return folder.tryEmpty(name);
    }

    /** Returns whether a record or a mark of that name is here, whether or not it opens. */
    public boolean has(String name) {
        return folder.has(name);
    }

    /** Deletes a record; one that is not there is no error. */
    public void remove(String name) {
        folder.delete(name + Folder.PART);
        folder.delete(name);
    }

    /** Returns the names of the records that begin so. */
    public List<String> names(String prefix) {
        List<String> names = new ArrayList<>();
        for (String name : folder.names()) {
            if (name.startsWith(prefix)) {
                names.add(name);
            }
        }
        return names;
    }

    /** Destroys the key, then the files: even what a disk keeps of them opens no more. */
    public void wipe() {
        keys.destroy(label);
        folder.deleteParts();
        for (String name : folder.names()) {
            folder.delete(name);
        }
    }

    private byte[] context(String name) {
        return Sealing.bind("mien/client/1", label, name);
    }
}
