package mien.client.join;

import java.io.IOException;
import java.security.KeyPair;
import org.bouncycastle.asn1.DERBitString;
import org.bouncycastle.asn1.DERSet;
import org.bouncycastle.asn1.pkcs.CertificationRequest;
import org.bouncycastle.asn1.pkcs.CertificationRequestInfo;
import org.bouncycastle.asn1.x500.RDN;
import org.bouncycastle.asn1.x500.X500Name;
import org.bouncycastle.asn1.x509.AlgorithmIdentifier;
import org.bouncycastle.asn1.x509.SubjectPublicKeyInfo;
import org.bouncycastle.asn1.x9.X9ObjectIdentifiers;

/** A request (PKCS#10, DER) that proves a key and asks for no name: the registrar decides those. */
final class Csr {
    private Csr() {}

    static byte[] of(KeyPair key) {
        SubjectPublicKeyInfo shown = SubjectPublicKeyInfo.getInstance(key.getPublic().getEncoded());
        CertificationRequestInfo info =
                new CertificationRequestInfo(new X500Name(new RDN[0]), shown, new DERSet());
        AlgorithmIdentifier algorithm = new AlgorithmIdentifier(X9ObjectIdentifiers.ecdsa_with_SHA256);
        try {
            byte[] signature = Identity.sign(key, info.getEncoded("DER"));
            return new CertificationRequest(info, algorithm, new DERBitString(signature)).getEncoded("DER");
        } catch (IOException error) {
            throw new IllegalStateException("a request in memory can be written", error);
        }
    }
}
