package mien.app.keys;

import android.content.pm.PackageManager;
import android.security.keystore.KeyGenParameterSpec;
import android.security.keystore.KeyProperties;
import android.security.keystore.StrongBoxUnavailableException;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.ProviderException;
import java.security.spec.ECGenParameterSpec;
import java.util.Collections;
import javax.crypto.KeyGenerator;
import javax.crypto.SecretKey;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.join.IdentityKeys;

/**
 * AndroidKeyStore, and nothing but calls of it: a JVM has none, so that no test of ours runs this class.
 *
 * <p>Keys are made in StrongBox where the phone has one. Those that training needs work while the phone is locked, for it
 * trains when nobody holds it; before the first unlocking after a restart Android itself keeps their files closed.
 */
final class Hardware implements WrappingKeys, IdentityKeys {
    private static final String STORE = "AndroidKeyStore";
    private static final String IDENTITY = "mien.identity";
    private static final String WRAPPING = "mien.wrapping.";
    private static final int KEY_BITS = 256;

    private final boolean hasStrongBox;

    Hardware(PackageManager packages) {
        hasStrongBox = packages.hasSystemFeature(PackageManager.FEATURE_STRONGBOX_KEYSTORE);
    }

    /** Returns the AES-256 key that wraps the key of a name, made at the first call. */
    @Override
    public SecretKey wrapping(String name, Opens opens) {
        String alias = WRAPPING + opens.named(name);
        try {
            SecretKey there = (SecretKey) store().getKey(alias, null);
            return there == null ? makeWrapping(alias, opens) : there;
        } catch (GeneralSecurityException | IOException | ProviderException error) {
            throw failed(error);
        }
    }

    private SecretKey makeWrapping(String alias, Opens opens) throws GeneralSecurityException {
        KeyGenParameterSpec.Builder spec =
                new KeyGenParameterSpec.Builder(alias, KeyProperties.PURPOSE_ENCRYPT | KeyProperties.PURPOSE_DECRYPT)
                        .setKeySize(KEY_BITS)
                        .setUnlockedDeviceRequired(opens == Opens.WHILE_UNLOCKED)
                        .setBlockModes(KeyProperties.BLOCK_MODE_GCM)
                        .setEncryptionPaddings(KeyProperties.ENCRYPTION_PADDING_NONE);
        KeyGenerator generator = KeyGenerator.getInstance(KeyProperties.KEY_ALGORITHM_AES, STORE);
        return best(
                spec,
                asked -> {
                    generator.init(asked);
                    return generator.generateKey();
                });
    }

    /** Returns the key that signs this phone's certificate request, connections and protocol messages. */
    @Override
    public KeyPair loadOrCreate() {
        try {
            KeyStore store = store();
            PrivateKey there = (PrivateKey) store.getKey(IDENTITY, null);
            return there == null
                    ? makeIdentity()
                    : new KeyPair(store.getCertificate(IDENTITY).getPublicKey(), there);
        } catch (GeneralSecurityException | IOException | ProviderException error) {
            throw failed(error);
        }
    }

    private KeyPair makeIdentity() throws GeneralSecurityException {
        // NONE: a TLS 1.3 library signs a digest that it made itself.
        KeyGenParameterSpec.Builder spec =
                new KeyGenParameterSpec.Builder(IDENTITY, KeyProperties.PURPOSE_SIGN)
                        .setAlgorithmParameterSpec(new ECGenParameterSpec("secp256r1"))
                        .setDigests(KeyProperties.DIGEST_SHA256, KeyProperties.DIGEST_NONE);
        KeyPairGenerator generator = KeyPairGenerator.getInstance(KeyProperties.KEY_ALGORITHM_EC, STORE);
        return best(
                spec,
                asked -> {
                    generator.initialize(asked);
                    return generator.generateKeyPair();
                });
    }

    private interface Making<K> {
        K make(KeyGenParameterSpec spec) throws GeneralSecurityException;
    }

    /** Makes a key in StrongBox; where there is none, or it is full, in what else the phone has. */
    private <K> K best(KeyGenParameterSpec.Builder spec, Making<K> making) throws GeneralSecurityException {
        if (hasStrongBox) {
            try {
                return making.make(spec.setIsStrongBoxBacked(true).build());
            } catch (StrongBoxUnavailableException full) {
                spec.setIsStrongBoxBacked(false);
            }
        }
        return making.make(spec.build());
    }

    @Override
    public void destroyWrapping(String name, Opens opens) {
        delete(WRAPPING + opens.named(name));
    }

    @Override
    public void destroy() {
        delete(IDENTITY);
    }

    private static void delete(String alias) {
        try {
            store().deleteEntry(alias);
        } catch (GeneralSecurityException | IOException error) {
            throw failed(error);
        }
    }

    /** Destroys every key of this app's. */
    void destroyAll() {
        try {
            KeyStore store = store();
            for (String alias : Collections.list(store.aliases())) {
                store.deleteEntry(alias);
            }
        } catch (GeneralSecurityException | IOException error) {
            throw failed(error);
        }
    }

    private static KeyStore store() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance(STORE);
        store.load(null);
        return store;
    }

    private static MienException failed(Exception error) {
        return new MienException(
                ErrorCode.KEY_STORE, "the phone's key store refused; unlock the phone, then try again", error);
    }
}
