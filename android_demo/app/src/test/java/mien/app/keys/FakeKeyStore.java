package mien.app.keys;

import android.security.KeyStoreException;
import android.security.keystore.KeyGenParameterSpec;
import android.security.keystore.KeyPermanentlyInvalidatedException;
import android.security.keystore.UserNotAuthenticatedException;
import java.io.InputStream;
import java.io.OutputStream;
import java.security.AlgorithmParameters;
import java.security.GeneralSecurityException;
import java.security.InvalidKeyException;
import java.security.Key;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.KeyPairGeneratorSpi;
import java.security.KeyStoreSpi;
import java.security.NoSuchAlgorithmException;
import java.security.PrivateKey;
import java.security.Provider;
import java.security.ProviderException;
import java.security.PublicKey;
import java.security.SecureRandom;
import java.security.Security;
import java.security.Signature;
import java.security.SignatureException;
import java.security.SignatureSpi;
import java.security.UnrecoverableKeyException;
import java.security.cert.Certificate;
import java.security.spec.AlgorithmParameterSpec;
import java.util.Collections;
import java.util.Date;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Supplier;
import javax.crypto.Cipher;
import javax.crypto.CipherSpi;
import javax.crypto.IllegalBlockSizeException;
import javax.crypto.KeyGeneratorSpi;
import javax.crypto.SecretKey;
import javax.crypto.spec.SecretKeySpec;
import mien.client.wire.Bytes;

/**
 * An AndroidKeyStore for tests, as a provider of the JVM's under its name: handles instead of keys, and every way to fail
 * that Android's reference names, where Android fails. Keys outlive the app in it as in hardware.
 */
public final class FakeKeyStore extends Provider {
    private static final long serialVersionUID = 1;

    /** How the key store fails. */
    public enum Fault {
        NONE,
        /** As while the phone is locked: the cipher does not take the key. */
        INVALID_KEY,
        NOT_AUTHENTICATED,
        /** The same by a number, as Android 13 and later say it. */
        AUTHENTICATION_REQUIRED,
        /** The key store's process is not there. */
        PROVIDER,
        PROVIDER_IN_CIPHER,
        /** The key is taken, and fails in the middle. */
        BLOCK_SIZE,
        UNRECOVERABLE,
        INVALIDATED,
        /** As after the screen lock was removed on Android 12 to 14: no key of that name. */
        DELETED,
        /** What it sealed was changed, and it works. */
        TAG;

        /** Returns whether nothing that was sealed opens ever again. */
        public boolean isForGood() {
            return this == INVALIDATED || this == DELETED || this == TAG;
        }
    }

    private static final String STORE = "AndroidKeyStore";
    private static final String USERS = "AndroidKeyStoreBCWorkaround";
    private static final Map<String, Object> KEYS = new LinkedHashMap<>();
    /** By key, what hardware was asked to attest of it. */
    private static final Map<String, byte[]> CHALLENGES = new LinkedHashMap<>();
    private static boolean attests = true;
    private static Fault fault = Fault.NONE;
    private static String concerns = "";
    /** What making a key in StrongBox throws; null where that works. */
    private static ProviderException strongBox;

    private static KeyGenParameterSpec lastMade;

    private FakeKeyStore(String name) {
        super(name, 1.0, "made up for tests");
    }

    private void make(String type, String algorithm, Supplier<Object> maker) {
        putService(
                new Service(this, type, algorithm, Object.class.getName(), null, null) {
                    @Override
                    public Object newInstance(Object parameter) {
                        return maker.get();
                    }

                    @Override
                    public boolean supportsParameter(Object parameter) {
                        return parameter instanceof Handle;
                    }
                });
    }

    /** Begins with an empty key store that works. */
    public static void install() {
        uninstall();
        KEYS.clear();
        CHALLENGES.clear();
        attests = true;
        fail(Fault.NONE, "");
        strongBox = null;
        FakeKeyStore keys = new FakeKeyStore(STORE);
        keys.make("KeyStore", STORE, Store::new);
        keys.make("KeyGenerator", "AES", Generator::new);
        keys.make("KeyPairGenerator", "EC", PairGenerator::new);
        Security.addProvider(keys);
        // As Android does it: those who work with handles come before those who throw at them.
        FakeKeyStore users = new FakeKeyStore(USERS);
        users.make("Cipher", "AES/GCM/NoPadding", Sealer::new);
        users.make("Signature", "SHA256withECDSA", Signer::new);
        Security.insertProviderAt(users, 1);
    }

    public static void uninstall() {
        Security.removeProvider(STORE);
        Security.removeProvider(USERS);
    }

    /** Has the keys whose names begin so fail from now on. */
    public static void fail(Fault how, String names) {
        fault = how;
        concerns = names;
    }

    /** Returns a key that is there, as an earlier version of the app left one. */
    static KeyPair makeEarlier(String alias) throws GeneralSecurityException {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
        generator.initialize(256);
        KeyPair made = generator.generateKeyPair();
        KEYS.put(alias, made);
        CHALLENGES.put(alias, new byte[0]);
        return made;
    }

    static void failInStrongBox(ProviderException how) {
        strongBox = how;
    }

    /** Has the hardware attest nothing, and refuse to make keys of which it is asked to. */
    static void attestNothing(boolean nothing) {
        attests = !nothing;
    }

    static KeyGenParameterSpec lastMade() {
        return lastMade;
    }

    private static boolean fails(String alias, Fault how) {
        return fault == how && alias.startsWith(concerns);
    }

    /** A key by its name alone. */
    private static class Handle implements Key {
        private static final long serialVersionUID = 1;
        final String alias;

        Handle(String alias) {
            this.alias = alias;
        }

        @Override
        public String getAlgorithm() {
            return KEYS.get(alias) instanceof KeyPair ? "EC" : "AES";
        }

        @Override
        public String getFormat() {
            return null;
        }

        @Override
        public byte[] getEncoded() {
            return null;
        }
    }

    private static final class SecretHandle extends Handle implements SecretKey {
        private static final long serialVersionUID = 1;

        SecretHandle(String alias) {
            super(alias);
        }
    }

    private static final class PrivateHandle extends Handle implements PrivateKey {
        private static final long serialVersionUID = 1;

        PrivateHandle(String alias) {
            super(alias);
        }
    }

    private static Handle handle(String alias) {
        return KEYS.get(alias) instanceof KeyPair ? new PrivateHandle(alias) : new SecretHandle(alias);
    }

    private static void checkStrongBox(KeyGenParameterSpec spec) {
        if (spec.isStrongBoxBacked() && strongBox != null) {
            throw strongBox;
        }
        lastMade = spec;
    }

    /** Throws as Android does when an operation begins. */
    private static void begin(String alias) throws InvalidKeyException {
        if (fails(alias, Fault.INVALID_KEY)) {
            throw new InvalidKeyException("Keystore operation failed");
        }
        if (fails(alias, Fault.NOT_AUTHENTICATED)) {
            throw new UserNotAuthenticatedException();
        }
        if (fails(alias, Fault.AUTHENTICATION_REQUIRED)) {
            throw new InvalidKeyException(new KeyStoreException(-26, "KEY_USER_NOT_AUTHENTICATED"));
        }
        if (fails(alias, Fault.INVALIDATED)) {
            throw new KeyPermanentlyInvalidatedException();
        }
        if (fails(alias, Fault.PROVIDER_IN_CIPHER)) {
            throw new ProviderException("Keystore operation failed");
        }
    }

    private static final class Sealer extends CipherSpi {
        private Cipher cipher;
        private String alias;

        private void init(int mode, Key key, AlgorithmParameterSpec parameters) throws InvalidKeyException {
            alias = ((Handle) key).alias;
            begin(alias);
            try {
                cipher = Cipher.getInstance("AES/GCM/NoPadding");
                cipher.init(mode, (SecretKey) KEYS.get(alias), parameters);
            } catch (GeneralSecurityException error) {
                throw new InvalidKeyException(error);
            }
        }

        @Override
        protected void engineInit(int mode, Key key, SecureRandom random) throws InvalidKeyException {
            init(mode, key, null);
        }

        @Override
        protected void engineInit(int mode, Key key, AlgorithmParameterSpec parameters, SecureRandom random)
                throws InvalidKeyException {
            init(mode, key, parameters);
        }

        @Override
        protected void engineInit(int mode, Key key, AlgorithmParameters parameters, SecureRandom random) {
            throw new UnsupportedOperationException("nobody asks for it");
        }

        @Override
        protected void engineUpdateAAD(byte[] data, int offset, int length) {
            cipher.updateAAD(data, offset, length);
        }

        @Override
        protected byte[] engineUpdate(byte[] data, int offset, int length) {
            return cipher.update(data, offset, length);
        }

        @Override
        protected int engineUpdate(byte[] data, int offset, int length, byte[] out, int at) {
            throw new UnsupportedOperationException("nobody asks for it");
        }

        private void end() throws IllegalBlockSizeException {
            if (fails(alias, Fault.BLOCK_SIZE)) {
                IllegalBlockSizeException failed = new IllegalBlockSizeException();
                failed.initCause(new KeyStoreException(-49, "SECURE_HW_COMMUNICATION_FAILED"));
                throw failed;
            }
        }

        @Override
        protected byte[] engineDoFinal(byte[] data, int offset, int length)
                throws IllegalBlockSizeException, javax.crypto.BadPaddingException {
            end();
            return cipher.doFinal(data, offset, length);
        }

        @Override
        protected int engineDoFinal(byte[] data, int offset, int length, byte[] out, int at)
                throws IllegalBlockSizeException, javax.crypto.BadPaddingException {
            byte[] done = engineDoFinal(data, offset, length);
            System.arraycopy(done, 0, out, at, done.length);
            return done.length;
        }

        @Override
        protected int engineGetOutputSize(int length) {
            return cipher.getOutputSize(length);
        }

        @Override
        protected byte[] engineGetIV() {
            return cipher.getIV();
        }

        @Override
        protected int engineGetBlockSize() {
            return 16;
        }

        @Override
        protected AlgorithmParameters engineGetParameters() {
            return cipher.getParameters();
        }

        @Override
        protected void engineSetMode(String mode) {}

        @Override
        protected void engineSetPadding(String padding) {}
    }

    private static final class Signer extends SignatureSpi {
        private Signature signature;

        @Override
        protected void engineInitSign(PrivateKey key) throws InvalidKeyException {
            String alias = ((Handle) key).alias;
            begin(alias);
            try {
                signature = Signature.getInstance("SHA256withECDSA");
                signature.initSign(((KeyPair) KEYS.get(alias)).getPrivate());
            } catch (NoSuchAlgorithmException error) {
                throw new InvalidKeyException(error);
            }
        }

        @Override
        protected void engineUpdate(byte one) throws SignatureException {
            signature.update(one);
        }

        @Override
        protected void engineUpdate(byte[] data, int offset, int length) throws SignatureException {
            signature.update(data, offset, length);
        }

        @Override
        protected byte[] engineSign() throws SignatureException {
            return signature.sign();
        }

        @Override
        protected void engineInitVerify(PublicKey key) throws InvalidKeyException {
            throw new InvalidKeyException("Android verifies by another provider");
        }

        @Override
        protected boolean engineVerify(byte[] signed) {
            return false;
        }

        @Override
        @Deprecated
        protected void engineSetParameter(String name, Object value) {}

        @Override
        @Deprecated
        protected Object engineGetParameter(String name) {
            return null;
        }
    }

    private static final class Generator extends KeyGeneratorSpi {
        private KeyGenParameterSpec spec;

        @Override
        protected void engineInit(AlgorithmParameterSpec asked, SecureRandom random) {
            spec = (KeyGenParameterSpec) asked;
        }

        @Override
        protected void engineInit(SecureRandom random) {}

        @Override
        protected void engineInit(int bits, SecureRandom random) {}

        @Override
        protected SecretKey engineGenerateKey() {
            checkStrongBox(spec);
            byte[] bytes = new byte[spec.getKeySize() / 8];
            new SecureRandom().nextBytes(bytes);
            KEYS.put(spec.getKeystoreAlias(), new SecretKeySpec(bytes, "AES"));
            return (SecretKey) handle(spec.getKeystoreAlias());
        }
    }

    private static final class PairGenerator extends KeyPairGeneratorSpi {
        private KeyGenParameterSpec spec;

        @Override
        public void initialize(AlgorithmParameterSpec asked, SecureRandom random) {
            spec = (KeyGenParameterSpec) asked;
        }

        @Override
        public void initialize(int bits, SecureRandom random) {}

        @Override
        public KeyPair generateKeyPair() {
            checkStrongBox(spec);
            byte[] challenge = spec.getAttestationChallenge();
            if (challenge != null && !attests) {
                throw new ProviderException("Failed to generate attestation certificate chain");
            }
            try {
                KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
                generator.initialize(spec.getAlgorithmParameterSpec());
                KeyPair made = generator.generateKeyPair();
                KEYS.put(spec.getKeystoreAlias(), made);
                CHALLENGES.put(spec.getKeystoreAlias(), challenge == null ? new byte[0] : challenge);
                return new KeyPair(made.getPublic(), (PrivateKey) handle(spec.getKeystoreAlias()));
            } catch (GeneralSecurityException error) {
                throw new ProviderException(error);
            }
        }
    }

    /** What Android keeps beside a private key: its public key, and the challenge that hardware attested it for. */
    private static final class Shown extends Certificate {
        private static final long serialVersionUID = 1;
        private final PublicKey key;
        private final byte[] challenge;

        Shown(PublicKey key, byte[] challenge) {
            super("X.509");
            this.key = key;
            this.challenge = challenge;
        }

        @Override
        public PublicKey getPublicKey() {
            return key;
        }

        @Override
        public byte[] getEncoded() {
            return Bytes.concat(key.getEncoded(), challenge);
        }

        @Override
        public void verify(PublicKey by) {}

        @Override
        public void verify(PublicKey by, String provider) {}

        @Override
        public String toString() {
            return "a made-up certificate";
        }
    }

    private static final class Store extends KeyStoreSpi {
        @Override
        public Key engineGetKey(String alias, char[] password) throws NoSuchAlgorithmException, UnrecoverableKeyException {
            if (fails(alias, Fault.PROVIDER)) {
                throw new ProviderException("Failed to connect to the key store");
            }
            if (fails(alias, Fault.UNRECOVERABLE)) {
                throw new UnrecoverableKeyException("Failed to obtain information about the key");
            }
            return KEYS.containsKey(alias) && !fails(alias, Fault.DELETED) ? handle(alias) : null;
        }

        @Override
        public Certificate engineGetCertificate(String alias) {
            return new Shown(((KeyPair) KEYS.get(alias)).getPublic(), CHALLENGES.get(alias));
        }

        @Override
        public void engineDeleteEntry(String alias) {
            KEYS.remove(alias);
        }

        @Override
        public Enumeration<String> engineAliases() {
            return Collections.enumeration(KEYS.keySet());
        }

        @Override
        public boolean engineContainsAlias(String alias) {
            return KEYS.containsKey(alias);
        }

        @Override
        public int engineSize() {
            return KEYS.size();
        }

        @Override
        public boolean engineIsKeyEntry(String alias) {
            return KEYS.containsKey(alias);
        }

        @Override
        public boolean engineIsCertificateEntry(String alias) {
            return false;
        }

        @Override
        public Certificate[] engineGetCertificateChain(String alias) {
            Certificate own = engineGetCertificate(alias);
            boolean isAttested = CHALLENGES.get(alias).length > 0;
            return isAttested ? new Certificate[] {own, new Shown(own.getPublicKey(), new byte[0])} : new Certificate[] {own};
        }

        @Override
        public Date engineGetCreationDate(String alias) {
            return null;
        }

        @Override
        public void engineSetKeyEntry(String alias, Key key, char[] password, Certificate[] chain) {
            throw new UnsupportedOperationException("nobody asks for it");
        }

        @Override
        public void engineSetKeyEntry(String alias, byte[] key, Certificate[] chain) {
            throw new UnsupportedOperationException("nobody asks for it");
        }

        @Override
        public void engineSetCertificateEntry(String alias, Certificate certificate) {
            throw new UnsupportedOperationException("nobody asks for it");
        }

        @Override
        public String engineGetCertificateAlias(Certificate certificate) {
            return null;
        }

        @Override
        public void engineStore(OutputStream out, char[] password) {}

        @Override
        public void engineLoad(InputStream in, char[] password) {}
    }
}
