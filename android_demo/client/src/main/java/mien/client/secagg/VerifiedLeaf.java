package mien.client.secagg;

import java.security.PublicKey;

/** The device that a certificate names, once the certificate is proved: id (16 bytes), identity key, and its admission. */
public final class VerifiedLeaf {
    public final byte[] id;
    public final PublicKey key;
    /** When the registrar admitted the phone, whatever certificates it has had since. */
    public final long admittedUnixS;
    /** Whether hardware attested its key when it joined, as the registrar says. */
    public final boolean isAttested;

    /** Holds what a certificate says that was checked against the registrar's. */
    public VerifiedLeaf(byte[] id, PublicKey key, long admittedUnixS, boolean isAttested) {
        this.id = id;
        this.key = key;
        this.admittedUnixS = admittedUnixS;
        this.isAttested = isAttested;
    }
}
