package mien.app.keys;

import mien.client.join.IdentityKeys;
import mien.client.store.KeyProvider;

/** Where this phone's keys live: AndroidKeyStore on a phone, files in tests. */
public interface Keys {
    /** Returns the keys that seal records. */
    KeyProvider sealing();

    /** Returns the P-256 key that is this phone's name in a fleet. */
    IdentityKeys identity();

    /** Lets the gallery open while the phone is locked, for training at night, or no longer. */
    void openWhileLocked(boolean opens);

    /** Destroys them all: nothing that was sealed opens again, and the certificate proves nothing any more. */
    void destroy();
}
