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
    /** The label of pictures, names and templates. */
    static final String GALLERY = "gallery";

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
        if (known == null) {
            known = load(name);
            opened.put(name, known);
        }
        return known;
    }

    private SecretKey load(String name) {
        for (Opens opens : Opens.values()) {
            byte[] sealed = folder.read(opens.named(name));
            if (sealed != null) {
                byte[] bytes = Sealing.unseal(wrapping.wrapping(name, opens), sealed, context(name), "a stored key");
                return new SecretKeySpec(bytes, "AES");
            }
        }
        byte[] bytes = new byte[KEY_BYTES];
        new SecureRandom().nextBytes(bytes);
        SecretKey made = new SecretKeySpec(bytes, "AES");
        store(name, made, name.equals(GALLERY) ? Opens.WHILE_UNLOCKED : Opens.ALWAYS);
        return made;
    }

    /** Has the gallery's key open when it must: at night only where somebody agreed to training. */
    synchronized void openGallery(Opens opens) {
        if (folder.has(opens.other().named(GALLERY))) {
            store(GALLERY, key(GALLERY), opens);
            forget(GALLERY, opens.other());
        }
    }

    private void store(String name, SecretKey key, Opens opens) {
        byte[] sealed = Sealing.seal(wrapping.wrapping(name, opens), key.getEncoded(), context(name));
        folder.write(opens.named(name), sealed);
    }

    private void forget(String name, Opens opens) {
        wrapping.destroyWrapping(name, opens);
        folder.delete(opens.named(name));
    }

    @Override
    public synchronized void destroy(String name) {
        opened.remove(name);
        for (Opens opens : Opens.values()) {
            forget(name, opens);
        }
    }

    private static byte[] context(String name) {
        return Sealing.bind("mien/app/key/1", name);
    }
}
