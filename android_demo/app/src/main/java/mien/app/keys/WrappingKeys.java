package mien.app.keys;

import javax.crypto.SecretKey;

/** Keys that seal nothing but other keys. */
interface WrappingKeys {
    /** Returns the key of a name, made at the first call. */
    SecretKey wrapping(String name, Opens opens);

    void destroyWrapping(String name, Opens opens);
}
