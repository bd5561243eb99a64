package mien.client.secagg;

import java.security.PublicKey;

/** The device that a certificate names, once the certificate is proved: id (16 bytes) and identity key. */
public final class VerifiedLeaf {
    public final byte[] id;
    public final PublicKey key;

    public VerifiedLeaf(byte[] id, PublicKey key) {
        this.id = id;
        this.key = key;
    }
}
