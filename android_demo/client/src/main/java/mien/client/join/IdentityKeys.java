package mien.client.join;

import java.security.KeyPair;

/**
 * Where the device's P-256 key lives: a sealed file on the JVM, hardware on a phone. Hardware attests of a key which invite it
 * was made for, so that each invite may have a key of its own; an invite is named by its {@code sha256}.
 */
public interface IdentityKeys {
    /** Returns the key that joined by an invite, null where it is not there any more. */
    KeyPair find(String invite);

    /** Returns the key to join with by an invite, the same one at every call; it is made with {@code challenge}. */
    AttestedKey toJoin(String invite, byte[] challenge);

    /** Is told that the registrar does not take the key of an invite: the next one may be better attested. */
    void refused(String invite);

    /** Is told that this device has joined by an invite: keys of others are over. */
    void admitted(String invite);

    /** Destroys all of them: this device is nobody any more. */
    void destroy();
}
