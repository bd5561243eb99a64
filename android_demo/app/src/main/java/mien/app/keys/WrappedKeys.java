package mien.app.keys;

import java.security.SecureRandom;
import java.util.HashMap;
import java.util.Map;
import javax.crypto.SecretKey;
import javax.crypto.spec.SecretKeySpec;
import mien.client.store.Folder;
import mien.client.store.KeyProvider;
import mien.client.store.Sealing;

/**
 * AES-256 keys that are stored sealed by a key of the hardware's. Records are sealed by these and not by the hardware
 * itself, which takes minutes over the megabytes of a round; in memory they live as long as the process.
 */
final class WrappedKeys implements KeyProvider {
    private static final int KEY_BYTES = 32;

    private final Folder folder;
    private final WrappingKeys wrapping;
    private final Map<String, SecretKey> opened = new HashMap<>();

    WrappedKeys(Folder folder, WrappingKeys wrapping) {
        this.folder = folder;
        this.wrapping = wrapping;
    }

    @Override
    public synchronized SecretKey key(String name) {
        SecretKey known = opened.get(name);
        if (known != null) {
            return known;
        }
        byte[] sealed = folder.read(name);
        byte[] bytes;
        if (sealed == null) {
            bytes = new byte[KEY_BYTES];
            new SecureRandom().nextBytes(bytes);
            folder.write(name, Sealing.seal(wrapping.wrapping(name), bytes, context(name)));
        } else {
            bytes = Sealing.unseal(wrapping.wrapping(name), sealed, context(name), "a stored key");
        }
        SecretKey key = new SecretKeySpec(bytes, "AES");
        opened.put(name, key);
        return key;
    }

    @Override
    public synchronized void destroy(String name) {
        opened.remove(name);
        wrapping.destroyWrapping(name);
        folder.delete(name);
    }

    synchronized void destroyAll() {
        for (String name : folder.names()) {
            destroy(name);
        }
        opened.clear();
    }

    private static byte[] context(String name) {
        return Sealing.bind("mien/app/key/1", name);
    }
}
