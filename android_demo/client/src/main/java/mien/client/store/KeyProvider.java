package mien.client.store;

import javax.crypto.SecretKey;

/**
 * Where the keys that seal records live: a file on the JVM, AndroidKeyStore on a phone. A key that is there may be out of
 * reach: then every method throws KEY_STORE (try later) or KEY_LOCKED (unlock the phone first), and nothing is lost.
 */
public interface KeyProvider {
    /** Returns the AES-256 key of a name, null where there is none; throws KEY_LOST for one that works never again. */
    SecretKey find(String name);

    /** Returns a new key of a name in place of any other; for whoever has nothing sealed by the other. */
    SecretKey make(String name);

    /** Destroys a key: nothing that it sealed opens again. */
    void destroy(String name);
}
