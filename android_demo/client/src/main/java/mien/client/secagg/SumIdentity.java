package mien.client.secagg;

/** Who a device is in a private sum: its id (16 bytes), leaf certificate (DER), and the key that signs. */
public final class SumIdentity {
    final byte[] id;
    final byte[] certificate;
    final Signer signer;

    /** Names a device in sums by its id and its certificate in DER, with what signs for it. */
    public SumIdentity(byte[] id, byte[] certificate, Signer signer) {
        this.id = id;
        this.certificate = certificate;
        this.signer = signer;
    }
}
