package mien.client.secagg;

import mien.client.wire.Bytes;

/**
 * A device in a roster: id, fresh keys (X25519 for masks; X25519 and ML-KEM-768 for what is sealed), a nonce, its
 * signature over them, its leaf certificate (DER).
 */
final class Entry {
    private static final int MAX_CERTIFICATE_BYTES = 8 * 1024;

    final byte[] id;
    final byte[] maskKey;
    final byte[] shareKey;
    final byte[] kemKey;
    final byte[] nonce;
    final byte[] signature;
    final byte[] certificate;

    Entry(
            byte[] id,
            byte[] maskKey,
            byte[] shareKey,
            byte[] kemKey,
            byte[] nonce,
            byte[] signature,
            byte[] certificate) {
        this.id = id;
        this.maskKey = maskKey;
        this.shareKey = shareKey;
        this.kemKey = kemKey;
        this.nonce = nonce;
        this.signature = signature;
        this.certificate = certificate;
    }

    static Entry read(MessageReader in) {
        return new Entry(
                in.take(Canonical.ID_BYTES),
                in.take(Keys.KEY_BYTES),
                in.take(Keys.KEY_BYTES),
                in.take(Kem.KEY_BYTES),
                in.take(Keys.KEY_BYTES),
                in.take(Keys.SIGNATURE_BYTES),
                in.take(in.number(2, MAX_CERTIFICATE_BYTES)));
    }

    byte[] toBytes() {
        byte[] length = Bytes.bigEndian(certificate.length, 2);
        return Bytes.concat(id, maskKey, shareKey, kemKey, nonce, signature, length, certificate);
    }

    /** Returns what message 1 signs. */
    byte[] statement(byte[] configSha256) {
        return Canonical.hash("adv", configSha256, id, maskKey, shareKey, kemKey, nonce);
    }
}
