package mien.client.store;

import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.security.ProviderException;
import javax.crypto.AEADBadTagException;
import javax.crypto.Cipher;
import javax.crypto.SecretKey;
import javax.crypto.spec.GCMParameterSpec;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/**
 * Bytes sealed with AES-256-GCM, bound to the place where they belong: nonce 12, ciphertext, tag 16.
 *
 * <p>A sealed record opens only under its key and its context: moved to another row, person or file, it does not open.
 */
public final class Sealing {
    private static final int NONCE_BYTES = 12;
    private static final int TAG_BITS = 128;

    private Sealing() {}

    /** Returns the context of a record as bytes, each part with its length, so that no two contexts look alike. */
    public static byte[] bind(Object... parts) {
        byte[] context = new byte[0];
        for (Object part : parts) {
            byte[] text = Bytes.utf8(String.valueOf(part));
            context = Bytes.concat(context, Bytes.bigEndian(text.length, 4), text);
        }
        return context;
    }

    /** Returns what {@link #unseal} opens. The cipher draws its nonce itself, as hardware key stores demand. */
    public static byte[] seal(SecretKey key, byte[] plain, byte[] context) {
        try {
            Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
            cipher.init(Cipher.ENCRYPT_MODE, key);
            cipher.updateAAD(context);
            ByteBuffer sealed = ByteBuffer.allocate(NONCE_BYTES + plain.length + TAG_BITS / 8);
            sealed.put(cipher.getIV());
            cipher.doFinal(ByteBuffer.wrap(plain), sealed);
            return sealed.array();
        } catch (GeneralSecurityException | ProviderException error) {
            throw new MienException(
                    ErrorCode.KEY_STORE, "the key store could not seal a record; unlock the phone, then try again", error);
        }
    }

    /**
     * Returns what was sealed. Throws CORRUPT_DATA naming {@code what} for any other key, context or bytes: for a tag that
     * is wrong, and nothing else. A key in hardware that does not work now is KEY_STORE, with the failure as its cause.
     */
    public static byte[] unseal(SecretKey key, byte[] sealed, byte[] context, String what) {
        try {
            if (sealed.length >= NONCE_BYTES + TAG_BITS / 8) {
                Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
                cipher.init(Cipher.DECRYPT_MODE, key, new GCMParameterSpec(TAG_BITS, sealed, 0, NONCE_BYTES));
                cipher.updateAAD(context);
                return cipher.doFinal(sealed, NONCE_BYTES, sealed.length - NONCE_BYTES);
            }
        } catch (AEADBadTagException error) {
            // One error for every cause: it tells nothing to whoever tries.
        } catch (GeneralSecurityException | ProviderException error) {
            throw new MienException(
                    ErrorCode.KEY_STORE,
                    "the key store could not open " + what + "; nothing is lost, unlock the phone, then try again",
                    error);
        }
        throw new MienException(
                ErrorCode.CORRUPT_DATA,
                what + " does not open: it is damaged, was tampered with, or belongs to another key; restore it from a"
                        + " copy, or wipe and enrol again");
    }
}
