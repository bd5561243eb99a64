package mien.client.join;

import java.io.IOException;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.spec.ECGenParameterSpec;
import java.security.spec.PKCS8EncodedKeySpec;
import java.security.spec.X509EncodedKeySpec;
import java.util.Collections;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Vault;
import org.bouncycastle.asn1.ASN1Encodable;
import org.bouncycastle.asn1.ASN1OctetString;
import org.bouncycastle.asn1.ASN1Sequence;
import org.bouncycastle.asn1.DEROctetString;
import org.bouncycastle.asn1.DERSequence;

/** A P-256 key in a sealed record, the same one for every invite: PKCS#8 and SubjectPublicKeyInfo. */
public final class FileIdentityKeys implements IdentityKeys {
    private static final String RECORD = "identity-key";
    private final Vault vault;

    /** Keeps keys in a vault. */
    public FileIdentityKeys(Vault vault) {
        this.vault = vault;
    }

    @Override
    public synchronized KeyPair find(String invite) {
        try {
            byte[] stored = vault.isLost() ? null : vault.get(RECORD);
            return stored == null ? null : parse(stored);
        } catch (GeneralSecurityException error) {
            throw damaged(error);
        }
    }

    @Override
    public synchronized AttestedKey toJoin(String invite, byte[] challenge) {
        try {
            if (vault.isLost()) {
                vault.wipe(); // a key that never opens again is as one that is not there: the phone joins anew
            }
            KeyPair there = find(invite);
            return new AttestedKey(there == null ? create() : there, Collections.<byte[]>emptyList());
        } catch (GeneralSecurityException | IOException error) {
            throw damaged(error);
        }
    }

    private static MienException damaged(Exception error) {
        return new MienException(
                ErrorCode.KEY_STORE, "the device's private key is damaged; join again in an empty folder", error);
    }

    @Override
    public void refused(String invite) {
        // It is the key of every invite, and nothing attests it.
    }

    @Override
    public void admitted(String invite) {
        // There is no other one.
    }

    @Override
    public synchronized void destroy() {
        vault.wipe();
    }

    private KeyPair create() throws GeneralSecurityException, IOException {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
        generator.initialize(new ECGenParameterSpec("secp256r1"));
        KeyPair pair = generator.generateKeyPair();
        DERSequence both =
                new DERSequence(
                        new ASN1Encodable[] {
                            new DEROctetString(pair.getPrivate().getEncoded()),
                            new DEROctetString(pair.getPublic().getEncoded()),
                        });
        vault.put(RECORD, both.getEncoded());
        return pair;
    }

    private static KeyPair parse(byte[] stored) throws GeneralSecurityException {
        ASN1Sequence both = ASN1Sequence.getInstance(stored);
        KeyFactory factory = KeyFactory.getInstance("EC");
        byte[] secret = ASN1OctetString.getInstance(both.getObjectAt(0)).getOctets();
        byte[] shown = ASN1OctetString.getInstance(both.getObjectAt(1)).getOctets();
        return new KeyPair(
                factory.generatePublic(new X509EncodedKeySpec(shown)),
                factory.generatePrivate(new PKCS8EncodedKeySpec(secret)));
    }
}
