package mien.client.secagg;

import mien.client.ErrorCode;
import mien.client.MienException;
import org.bouncycastle.crypto.SecretWithEncapsulation;
import org.bouncycastle.crypto.kems.MLKEMExtractor;
import org.bouncycastle.crypto.kems.MLKEMGenerator;
import org.bouncycastle.crypto.params.MLKEMParameters;
import org.bouncycastle.crypto.params.MLKEMPrivateKeyParameters;
import org.bouncycastle.crypto.params.MLKEMPublicKeyParameters;

/** A fresh ML-KEM-768 key of one attempt (FIPS 203), from a seed of 64 bytes. */
final class Kem {
    static final int SEED_BYTES = 64;
    static final int KEY_BYTES = 1184;
    static final int CIPHERTEXT_BYTES = 1088;
    static final int CHANCE_BYTES = 32;

    private final MLKEMPrivateKeyParameters key;

    Kem(byte[] seed) {
        key = new MLKEMPrivateKeyParameters(MLKEMParameters.ml_kem_768, seed);
    }

    byte[] publicKey() {
        return key.getPublicKey();
    }

    /** Returns the secret in a ciphertext; another one, and no error, for what nobody encapsulated. */
    byte[] decapsulate(byte[] ciphertext) {
        return new MLKEMExtractor(key).extractSecret(ciphertext);
    }

    void destroy() {
        key.destroy();
    }

    @Override
    public String toString() {
        return "Kem(***)";
    }

    /** Returns a secret and its ciphertext by 32 bytes of chance; throws VIOLATION for bytes that no key pair has. */
    static byte[][] encapsulate(byte[] publicKey, byte[] chance) {
        try {
            MLKEMPublicKeyParameters peer = new MLKEMPublicKeyParameters(MLKEMParameters.ml_kem_768, publicKey);
            SecretWithEncapsulation made = MLKEMGenerator.internalGenerateEncapsulated(peer, chance);
            return new byte[][] {made.getSecret(), made.getEncapsulation()};
        } catch (IllegalArgumentException error) {
            throw new MienException(
                    ErrorCode.VIOLATION, "a device announced a key that no key pair has; it was not counted", error);
        }
    }
}
