package mien.client.secagg;

/** A device's P-256 identity key, wherever it lives: signs as every key store does. */
public interface Signer {
    /** Returns the ASN.1 signature over SHA-256 of a message. */
    byte[] signDer(byte[] message);
}
