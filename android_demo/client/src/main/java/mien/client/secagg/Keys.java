package mien.client.secagg;

import java.math.BigInteger;
import java.security.GeneralSecurityException;
import java.security.InvalidKeyException;
import java.security.PublicKey;
import java.security.Signature;
import java.security.SignatureException;
import java.security.interfaces.ECPublicKey;
import java.util.Arrays;
import javax.crypto.AEADBadTagException;
import javax.crypto.Cipher;
import javax.crypto.Mac;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;
import org.bouncycastle.math.ec.rfc7748.X25519;

/** Keys of the protocol: who signs, which secrets two devices share, how shares travel sealed. */
final class Keys {
    static final int KEY_BYTES = 32;
    static final int SIGNATURE_BYTES = 64;
    static final int SHARE_BYTES = 32;
    static final int PART_BYTES = 32;
    static final int SEALED_BYTES = Kem.CIPHERTEXT_BYTES + 2 * SHARE_BYTES + PART_BYTES + 16;
    private static final BigInteger ORDER =
            new BigInteger("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551", 16);

    private Keys() {}

    // Signatures

    /** Returns r, s in 64 bytes, with the lower of the two values of s that verify. */
    static byte[] sign(Signer signer, byte[] message) {
        BigInteger[] pair = integers(signer.signDer(message));
        BigInteger lower = pair[1].min(ORDER.subtract(pair[1]));
        return Bytes.concat(fixed(pair[0]), fixed(lower));
    }

    /** Throws VIOLATION unless {@code signature} over {@code message} is the key's, in its one permitted form. */
    static void verify(PublicKey key, byte[] message, byte[] signature, String what) {
        try {
            if (signature.length == SIGNATURE_BYTES) {
                BigInteger r = new BigInteger(1, Arrays.copyOf(signature, 32));
                BigInteger s = new BigInteger(1, Arrays.copyOfRange(signature, 32, 64));
                boolean inRange = r.signum() > 0 && r.compareTo(ORDER) < 0 && s.signum() > 0;
                if (inRange && s.compareTo(ORDER.shiftRight(1)) <= 0) {
                    Signature verifier = Signature.getInstance("SHA256withECDSA");
                    verifier.initVerify(key);
                    verifier.update(message);
                    if (verifier.verify(der(r, s))) {
                        return;
                    }
                }
            }
        } catch (InvalidKeyException | SignatureException error) {
            throw unsigned(what, error);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every Java has ECDSA", error);
        }
        throw unsigned(what, null);
    }

    private static MienException unsigned(String what, Throwable cause) {
        return new MienException(
                ErrorCode.VIOLATION,
                what + " is not signed by the device it names, or for another round; leave this round",
                cause);
    }

    /** Throws CERTIFICATE unless the leaf is the claimed device's, with a P-256 key. */
    static void checkIdentity(VerifiedLeaf leaf, byte[] claimedId) {
        boolean isP256 = leaf.key instanceof ECPublicKey && ((ECPublicKey) leaf.key).getParams().getOrder().equals(ORDER);
        if (!isP256 || !Arrays.equals(leaf.id, claimedId) || !Arrays.equals(claimedId, identityId(leaf.key))) {
            throw new MienException(
                    ErrorCode.CERTIFICATE,
                    "certificate of device " + shortName(claimedId)
                            + " is not for that device and a key of this round's kind; that device has to join again");
        }
    }

    /** Returns the id of an identity key: the first 16 bytes of SHA-256 over its SubjectPublicKeyInfo. */
    static byte[] identityId(PublicKey key) {
        return Arrays.copyOf(Bytes.sha256(key.getEncoded()), Canonical.ID_BYTES);
    }

    static String shortName(byte[] device) {
        return Bytes.hex(device).substring(0, 8);
    }

    private static byte[] fixed(BigInteger value) {
        byte[] bytes = value.toByteArray();
        byte[] fixed = new byte[32];
        int length = Math.min(32, bytes.length);
        System.arraycopy(bytes, bytes.length - length, fixed, 32 - length, length);
        return fixed;
    }

    private static byte[] der(BigInteger r, BigInteger s) {
        byte[] first = r.toByteArray();
        byte[] second = s.toByteArray();
        byte[] inner =
                Bytes.concat(
                        new byte[] {2, (byte) first.length}, first, new byte[] {2, (byte) second.length}, second);
        return Bytes.concat(new byte[] {0x30, (byte) inner.length}, inner);
    }

    /** Returns r and s of an ASN.1 signature, whose lengths are below 128. */
    private static BigInteger[] integers(byte[] der) {
        try {
            int first = der[3];
            byte[] r = Arrays.copyOfRange(der, 4, 4 + first);
            byte[] s = Arrays.copyOfRange(der, 6 + first, 6 + first + der[5 + first]);
            return new BigInteger[] {new BigInteger(r), new BigInteger(s)};
        } catch (IndexOutOfBoundsException | IllegalArgumentException error) {
            // Not KEY_STORE, for which a round waits: asked again, such a key store would keep it for ever.
            throw new MienException(
                    ErrorCode.OTHER,
                    "the key store returned a signature that is none; this phone leaves the round, restart it before the next",
                    error);
        }
    }

    // Keys of one attempt

    static byte[] publicOf(byte[] secret) {
        byte[] key = new byte[KEY_BYTES];
        X25519.scalarMultBase(secret, 0, key, 0);
        return key;
    }

    /** Returns the X25519 secret with a peer; throws VIOLATION for a peer key of small order. */
    static byte[] agree(byte[] secret, byte[] peerKey) {
        byte[] shared = new byte[KEY_BYTES];
        if (!X25519.calculateAgreement(secret, 0, peerKey, 0, shared, 0)) {
            throw new MienException(
                    ErrorCode.VIOLATION, "a device announced a key that no key pair has; it was not counted");
        }
        return shared;
    }

    /** Returns HKDF-SHA256(ikm, salt R, info = "MSA2/" label ids), 32 bytes. */
    static byte[] derive(byte[] ikm, byte[] binding, String label, byte[]... ids) {
        byte[] info = Bytes.concat(Canonical.domain(label), Bytes.concat(ids));
        return mac(mac(binding, ikm), Bytes.concat(info, new byte[] {1}));
    }

    private static byte[] mac(byte[] key, byte[] message) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            return mac.doFinal(message);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every Java has HMAC", error);
        }
    }

    /** Returns the X25519 key that follows from a mask's secret, one way: who finds the key has not the secret. */
    static byte[] maskKey(byte[] secret) {
        return derive(secret, new byte[KEY_BYTES], "mask");
    }

    /** Returns what the owner of a mask's secret tells one neighbour, sealed. */
    static byte[] part(byte[] maskSecret, byte[] binding, byte[] owner, byte[] peer) {
        return derive(maskSecret, binding, "part", owner, peer);
    }

    /** Returns the lower id's part under the higher id's, for the server: it lifts it if the higher one is lost. */
    static byte[] cover(byte[] part, byte[] peerPart, byte[] binding, byte[] lower, byte[] higher) {
        byte[] covered = derive(peerPart, binding, "cover", lower, higher);
        for (int i = 0; i < covered.length; i++) {
            covered[i] ^= part[i];
        }
        return covered;
    }

    /** Returns the seed of a pair's mask, the same on both sides: {@code part} is the lower id's. */
    static byte[] pairSeed(byte[] secret, byte[] peerKey, byte[] part, byte[] binding, byte[] own, byte[] peer) {
        boolean isLower = Bytes.compare(own, peer) < 0;
        byte[] both = Bytes.concat(agree(secret, peerKey), part);
        return derive(both, binding, "pair", isLower ? own : peer, isLower ? peer : own);
    }

    static byte[] selfSeed(byte[] secretB, byte[] binding, byte[] device) {
        return derive(secretB, binding, "self", device);
    }

    static byte[] commitment(byte[] secretB, byte[] binding, byte[] device) {
        return Canonical.hash("b", binding, device, secretB);
    }

    /** Returns shares and part sealed for one receiver, behind a secret that was encapsulated for it. */
    static byte[] seal(
            byte[] secret, byte[] peerKey, byte[][] encapsulated, byte[] binding, byte[] from, byte[] to, byte[] plain) {
        byte[] agreed = Bytes.concat(agree(secret, peerKey), encapsulated[0]);
        try {
            Cipher cipher = gcm(Cipher.ENCRYPT_MODE, agreed, encapsulated[1], binding, from, to);
            return Bytes.concat(encapsulated[1], cipher.doFinal(plain));
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("sealing 96 bytes cannot fail", error);
        }
    }

    /** Returns two shares and a part (96 bytes), or null unless that sender sealed them for this receiver. */
    static byte[] open(
            byte[] secret, Kem kem, byte[] peerKey, byte[] binding, byte[] from, byte[] to, byte[] sealed) {
        byte[] ciphertext = Arrays.copyOf(sealed, Kem.CIPHERTEXT_BYTES);
        byte[] agreed = Bytes.concat(agree(secret, peerKey), kem.decapsulate(ciphertext));
        try {
            Cipher cipher = gcm(Cipher.DECRYPT_MODE, agreed, ciphertext, binding, from, to);
            return cipher.doFinal(sealed, ciphertext.length, sealed.length - ciphertext.length);
        } catch (AEADBadTagException error) {
            return null;
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("opening 112 bytes fails by its tag alone", error);
        }
    }

    private static Cipher gcm(int mode, byte[] agreed, byte[] ciphertext, byte[] binding, byte[] from, byte[] to)
            throws GeneralSecurityException {
        byte[] key = derive(agreed, binding, "enc", from, to);
        Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
        // Each sealing key is used once, so its nonce may be zero.
        cipher.init(mode, new SecretKeySpec(key, "AES"), new GCMParameterSpec(128, new byte[12]));
        cipher.updateAAD(Bytes.concat(binding, from, to, ciphertext));
        return cipher;
    }
}
