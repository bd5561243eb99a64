package mien.app.keys;

import android.app.KeyguardManager;
import android.content.Context;
import android.content.pm.PackageManager;
import android.os.Build;
import android.security.keystore.KeyGenParameterSpec;
import android.security.keystore.KeyProperties;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.ProviderException;
import java.security.cert.Certificate;
import java.security.spec.ECGenParameterSpec;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.function.Predicate;
import javax.crypto.KeyGenerator;
import javax.crypto.SecretKey;
import mien.client.MienException;
import mien.client.join.AttestedKey;
import mien.client.join.IdentityKeys;

/**
 * AndroidKeyStore, and nothing but calls of it: a JVM has none, and tests run this class on one that they made up.
 *
 * <p>Keys are made in StrongBox where the phone has one. Those that training needs work while the phone is locked, for it
 * trains when nobody holds it; before the first unlocking after a restart Android itself keeps their files closed.
 */
final class Hardware implements WrappingKeys, IdentityKeys {
    private static final String STORE = "AndroidKeyStore";
    /** The name of the one key of an earlier version, and the beginning of those of invites. */
    private static final String EARLIER = "mien.identity";
    private static final String WRAPPING = "mien.wrapping.";
    private static final int KEY_BITS = 256;
    private static final int INVITE_DIGITS = 16;

    private final KeyguardManager lock;
    private final boolean hasStrongBox;

    Hardware(Context context) {
        lock = context.getSystemService(KeyguardManager.class);
        hasStrongBox = context.getPackageManager().hasSystemFeature(PackageManager.FEATURE_STRONGBOX_KEYSTORE);
    }

    @Override
    public SecretKey find(String name, Opens opens) {
        return asking(() -> (SecretKey) store().getKey(WRAPPING + opens.named(name), null));
    }

    @Override
    public SecretKey make(String name, Opens opens) {
        KeyGenParameterSpec.Builder spec =
                new KeyGenParameterSpec.Builder(
                                WRAPPING + opens.named(name), KeyProperties.PURPOSE_ENCRYPT | KeyProperties.PURPOSE_DECRYPT)
                        .setKeySize(KEY_BITS)
                        .setUnlockedDeviceRequired(opens == Opens.WHILE_UNLOCKED)
                        .setBlockModes(KeyProperties.BLOCK_MODE_GCM)
                        .setEncryptionPaddings(KeyProperties.ENCRYPTION_PADDING_NONE);
        return asking(
                () -> {
                    KeyGenerator generator = KeyGenerator.getInstance(KeyProperties.KEY_ALGORITHM_AES, STORE);
                    return best(
                            spec,
                            asked -> {
                                generator.init(asked);
                                return generator.generateKey();
                            });
                });
    }

    /** Android's reference warns of its versions 12 to 14: their key store deletes such keys with the screen lock. */
    @Override
    public boolean keepUnlockedKeys() {
        return Build.VERSION.SDK_INT < Build.VERSION_CODES.S
                || Build.VERSION.SDK_INT > Build.VERSION_CODES.UPSIDE_DOWN_CAKE;
    }

    @Override
    public MienException meaning(Throwable failure) {
        return Faults.meaning(failure, lock.isDeviceLocked());
    }

    /** Returns the key that signs this phone's connections and protocol messages since it joined by an invite. */
    @Override
    public KeyPair find(String invite) {
        return asking(
                () -> {
                    KeyPair own = pair(store(), alias(invite));
                    return own == null ? pair(store(), EARLIER) : own;
                });
    }

    /** A phone that cannot attest, or not now, makes the key all the same: whether that is enough is the registrar's to say. */
    @Override
    public AttestedKey toJoin(String invite, byte[] challenge) {
        return asking(
                () -> {
                    String alias = alias(invite);
                    KeyPair there = pair(store(), alias);
                    return new AttestedKey(there == null ? makeIdentity(alias, challenge) : there, chain(alias));
                });
    }

    @Override
    public void refused(String invite) {
        delete(alias(invite));
    }

    @Override
    public void admitted(String invite) {
        deleteAll(alias -> alias.startsWith(EARLIER) && !alias.equals(alias(invite)));
    }

    private static String alias(String invite) {
        return EARLIER + "." + invite.substring(0, INVITE_DIGITS);
    }

    private static KeyPair pair(KeyStore store, String alias) throws GeneralSecurityException {
        PrivateKey there = (PrivateKey) store.getKey(alias, null);
        return there == null ? null : new KeyPair(store.getCertificate(alias).getPublicKey(), there);
    }

    /** Returns who vouches for a key: one certificate alone is signed by the key itself, and says nothing. */
    private static List<byte[]> chain(String alias) throws GeneralSecurityException, IOException {
        List<byte[]> chain = new ArrayList<>();
        Certificate[] shown = store().getCertificateChain(alias);
        for (int i = 0; shown != null && shown.length > 1 && i < shown.length; i++) {
            chain.add(shown[i].getEncoded());
        }
        return chain;
    }

    private KeyPair makeIdentity(String alias, byte[] challenge) throws GeneralSecurityException {
        // NONE: a TLS 1.3 library signs a digest that it made itself.
        KeyGenParameterSpec.Builder spec =
                new KeyGenParameterSpec.Builder(alias, KeyProperties.PURPOSE_SIGN)
                        .setAlgorithmParameterSpec(new ECGenParameterSpec("secp256r1"))
                        .setDigests(KeyProperties.DIGEST_SHA256, KeyProperties.DIGEST_NONE);
        KeyPairGenerator generator = KeyPairGenerator.getInstance(KeyProperties.KEY_ALGORITHM_EC, STORE);
        Making<KeyPair> making =
                asked -> {
                    generator.initialize(asked);
                    return generator.generateKeyPair();
                };
        try {
            return best(spec.setAttestationChallenge(challenge), making);
        } catch (ProviderException cannotAttest) {
            return best(spec.setAttestationChallenge(null), making);
        }
    }

    private interface Making<K> {
        K make(KeyGenParameterSpec spec) throws GeneralSecurityException;
    }

    /**
     * Makes a key in StrongBox; where that is full, or does not do what it says that it can, in what else the phone has.
     * Some phones answer with another ProviderException than the one that Android names.
     */
    private <K> K best(KeyGenParameterSpec.Builder spec, Making<K> making) throws GeneralSecurityException {
        if (hasStrongBox) {
            try {
                return making.make(spec.setIsStrongBoxBacked(true).build());
            } catch (ProviderException unable) {
                spec.setIsStrongBoxBacked(false);
            }
        }
        return making.make(spec.build());
    }

    @Override
    public void destroy(String name, Opens opens) {
        delete(WRAPPING + opens.named(name));
    }

    @Override
    public void destroy() {
        deleteAll(alias -> alias.startsWith(EARLIER));
    }

    private void delete(String alias) {
        asking(
                () -> {
                    store().deleteEntry(alias);
                    return null;
                });
    }

    /** Destroys every key of this app's. */
    void destroyAll() {
        deleteAll(alias -> true);
    }

    private void deleteAll(Predicate<String> isMeant) {
        asking(
                () -> {
                    KeyStore store = store();
                    for (String alias : Collections.list(store.aliases())) {
                        if (isMeant.test(alias)) {
                            store.deleteEntry(alias);
                        }
                    }
                    return null;
                });
    }

    private static KeyStore store() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance(STORE);
        store.load(null);
        return store;
    }

    private interface Asking<T> {
        T ask() throws GeneralSecurityException, IOException;
    }

    private <T> T asking(Asking<T> question) {
        try {
            return question.ask();
        } catch (GeneralSecurityException | IOException | ProviderException error) {
            throw meaning(error);
        }
    }
}
