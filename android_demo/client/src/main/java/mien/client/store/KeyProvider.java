package mien.client.store;

import javax.crypto.SecretKey;

/** Where the keys that seal records live: a file on the JVM, AndroidKeyStore on a phone. */
public interface KeyProvider {
    /** Returns the AES-256 key of a name, made at the first call. */
    SecretKey key(String name);

    /** Destroys a key: nothing that it sealed opens again. */
    void destroy(String name);
}
