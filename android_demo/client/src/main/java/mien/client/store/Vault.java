package mien.client.store;

import java.util.ArrayList;
import java.util.List;

/** Sealed records in a folder, each bound to its name: one file a record, replaced as a whole. */
public final class Vault {
    private final Folder folder;
    private final KeyProvider keys;
    private final String label;

    public Vault(Folder folder, KeyProvider keys, String label) {
        this.folder = folder;
        this.keys = keys;
        this.label = label;
        folder.deleteParts(); // of writes that a stop cut short
    }

    /** Returns a record's bytes, null where there is none; throws CORRUPT_DATA for one that does not open. */
    public byte[] get(String name) {
        byte[] sealed = folder.read(name);
        return sealed == null ? null : Sealing.unseal(keys.key(label), sealed, context(name), "a stored record");
    }

    public void put(String name, byte[] plain) {
        folder.write(name, Sealing.seal(keys.key(label), plain, context(name)));
    }

    /** Sets a mark, which takes no room and is not sealed; returns whether that could be done. */
    public boolean tryMark(String name) {
        return folder.tryEmpty(name);
    }

    /** Returns whether a record or a mark of that name is here, whether or not it opens. */
    public boolean has(String name) {
        return folder.has(name);
    }

    public void remove(String name) {
        folder.delete(name + Folder.PART);
        folder.delete(name);
    }

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
