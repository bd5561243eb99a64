package mien.app.keys;

import javax.crypto.SecretKey;
import mien.client.MienException;

/** Keys that seal nothing but other keys. All throw KEY_STORE, KEY_LOCKED or KEY_LOST, as {@link Faults} says. */
interface WrappingKeys {
    /** Returns the key of a name, null where there is none. */
    SecretKey find(String name, Opens opens);

    /** Returns a new key of a name, in place of any other. */
    SecretKey make(String name, Opens opens);

    void destroy(String name, Opens opens);

    /**
     * Returns whether keys that work only while the phone is unlocked outlive its screen lock: on Android 12 to 14 they are
     * deleted with it, and what they sealed is lost.
     */
    boolean keepUnlockedKeys();

    /** Returns what it means that one of these keys failed: what to wait for, or that it is lost. */
    MienException meaning(Throwable failure);
}
