package mien.client.secagg;

import mien.client.wire.Bytes;

/** A device in a roster: id, two fresh X25519 keys, a nonce, its signature over them, its leaf certificate (DER). */
final class Entry {
    private static final int MAX_CERTIFICATE_BYTES = 8 * 1024;

    final byte[] id;
    final byte[] maskKey;
    final byte[] shareKey;
    final byte[] nonce;
    final byte[] signature;
    final byte[] certificate;

    Entry(byte[] id, byte[] maskKey, byte[] shareKey, byte[] nonce, byte[] signature, byte[] certificate) {
        this.id = id;
        this.maskKey = maskKey;
        this.shareKey = shareKey;
        this.nonce = nonce;
        this.signature = signature;
        this.certificate = certificate;
    }

    static Entry read(MessageReader in) {
        return new Entry(
                in.take(Canonical.ID_BYTES),
                in.take(Keys.KEY_BYTES),
                in.take(Keys.KEY_BYTES),
                in.take(Keys.KEY_BYTES),
                in.take(Keys.SIGNATURE_BYTES),
                in.take(in.number(2, MAX_CERTIFICATE_BYTES)));
    }

    byte[] toBytes() {
        byte[] length = Bytes.bigEndian(certificate.length, 2);
        return Bytes.concat(id, maskKey, shareKey, nonce, signature, length, certificate);
    }

    /** Returns what message 1 signs. */
    static byte[] statement(byte[] configSha256, byte[] id, byte[] maskKey, byte[] shareKey, byte[] nonce) {
        return Canonical.hash("adv", configSha256, id, maskKey, shareKey, nonce);
    }
}
