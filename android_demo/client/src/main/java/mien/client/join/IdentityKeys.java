package mien.client.join;

import java.security.KeyPair;

/** Where the device's P-256 key lives: a sealed file on the JVM, hardware on a phone. */
public interface IdentityKeys {
    /** Returns the key, made at the first call; every later call returns the same one. */
    KeyPair loadOrCreate();

    /** Destroys the key: this device is nobody any more. */
    void destroy();
}
