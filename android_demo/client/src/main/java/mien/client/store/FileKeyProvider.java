package mien.client.store;

import java.security.SecureRandom;
import javax.crypto.SecretKey;
import javax.crypto.spec.SecretKeySpec;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Keys in private files: for JVMs and tests. Whoever can read the folder can read what they seal. */
public final class FileKeyProvider implements KeyProvider {
    private static final int KEY_BYTES = 32;
    private final Folder folder;

    /** Keeps each key in a file of a folder. */
    public FileKeyProvider(Folder folder) {
        this.folder = folder;
    }

    @Override
    public synchronized SecretKey find(String name) {
        byte[] bytes = folder.read(name + ".key");
        if (bytes != null && bytes.length != KEY_BYTES) {
            throw new MienException(ErrorCode.KEY_LOST, "a key file is damaged; restore it, or wipe and enrol again");
        }
        return bytes == null ? null : new SecretKeySpec(bytes, "AES");
    }

    @Override
    public synchronized SecretKey make(String name) {
        byte[] bytes = new byte[KEY_BYTES];
        new SecureRandom().nextBytes(bytes);
        folder.write(name + ".key", bytes);
        return new SecretKeySpec(bytes, "AES");
    }

    @Override
    public synchronized void destroy(String name) {
        folder.delete(name + ".key");
    }
}
