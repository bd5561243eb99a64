package mien.app.keys;

import java.security.SecureRandom;
import java.util.HashMap;
import java.util.Map;
import javax.crypto.SecretKey;
import javax.crypto.spec.SecretKeySpec;
import mien.client.ErrorCode;
import mien.client.MienException;
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
    public synchronized SecretKey find(String name) {
        SecretKey known = opened.get(name);
        if (known == null) {
            known = load(name);
            if (known != null) {
                opened.put(name, known);
            }
        }
        return known;
    }

    /** A stop may have left a name sealed twice, the one without the key that sealed it: any that opens is the key. */
    private SecretKey load(String name) {
        MienException failed = null;
        for (Opens opens : Opens.values()) {
            byte[] sealed = folder.read(opens.named(name));
            if (sealed != null) {
                try {
                    return open(name, opens, sealed);
                } catch (MienException error) {
                    // Nothing is lost for good while another one may still open.
                    failed = failed == null || failed.code().isGone() ? error : failed;
                }
            }
        }
        if (failed != null) {
            throw failed;
        }
        return null;
    }

    private SecretKey open(String name, Opens opens, byte[] sealed) {
        SecretKey key = wrapping.find(name, opens);
        if (key == null) {
            throw new MienException(ErrorCode.KEY_LOST, "the phone's key store has lost a key for good; wipe, and enrol again");
        }
        try {
            return new SecretKeySpec(Sealing.unseal(key, sealed, context(name), "a stored key"), "AES");
        } catch (MienException error) {
            throw meaning(error);
        }
    }

    /** Returns the failure of the hardware's key by what it means; what was changed stays damaged. */
    private MienException meaning(MienException error) {
        return error.code() == ErrorCode.KEY_STORE ? wrapping.meaning(error.getCause()) : error;
    }

    @Override
    public synchronized SecretKey make(String name) {
        destroy(name); // no key of the hardware's is taken over: it may be one that works no more
        byte[] bytes = new byte[KEY_BYTES];
        new SecureRandom().nextBytes(bytes);
        SecretKey made = new SecretKeySpec(bytes, "AES");
        store(name, made, name.equals(GALLERY) ? allowed(Opens.WHILE_UNLOCKED) : Opens.ALWAYS);
        opened.put(name, made);
        return made;
    }

    /**
     * Has the gallery's key open when it must: at night only where somebody agreed to training, and where the phone would
     * lose a key that waits to be unlocked.
     */
    synchronized void openGallery(Opens wanted) {
        Opens opens = allowed(wanted);
        if (folder.has(opens.other().named(GALLERY))) {
            SecretKey key = find(GALLERY);
            if (!opensBy(GALLERY, opens)) {
                store(GALLERY, key, opens);
            }
            forget(GALLERY, opens.other());
        }
    }

    /** Returns whether a name is sealed in a way already, by a key that is there. */
    private boolean opensBy(String name, Opens opens) {
        byte[] sealed = folder.read(opens.named(name));
        try {
            return sealed != null && open(name, opens, sealed) != null;
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error;
            }
            return false;
        }
    }

    private Opens allowed(Opens wanted) {
        return wrapping.keepUnlockedKeys() ? wanted : Opens.ALWAYS;
    }

    private void store(String name, SecretKey key, Opens opens) {
        SecretKey hardware = wrapping.make(name, opens);
        try {
            folder.write(opens.named(name), Sealing.seal(hardware, key.getEncoded(), context(name)));
        } catch (MienException error) {
            throw meaning(error);
        }
    }

    private void forget(String name, Opens opens) {
        wrapping.destroy(name, opens);
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
