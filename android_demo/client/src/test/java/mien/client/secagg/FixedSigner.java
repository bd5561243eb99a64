package mien.client.secagg;

import java.math.BigInteger;
import mien.client.wire.Bytes;
import org.bouncycastle.asn1.x9.ECNamedCurveTable;
import org.bouncycastle.asn1.x9.X9ECParameters;
import org.bouncycastle.crypto.digests.SHA256Digest;
import org.bouncycastle.crypto.params.ECDomainParameters;
import org.bouncycastle.crypto.params.ECPrivateKeyParameters;
import org.bouncycastle.crypto.signers.ECDSASigner;
import org.bouncycastle.crypto.signers.HMacDSAKCalculator;
import org.bouncycastle.crypto.signers.StandardDSAEncoding;

/** Signs as RFC 6979 says, so that signatures are in the vectors. */
final class FixedSigner implements Signer {
    private final BigInteger secret;

    FixedSigner(byte[] secret) {
        this.secret = new BigInteger(1, secret);
    }

    @Override
    public byte[] signDer(byte[] message) {
        X9ECParameters curve = ECNamedCurveTable.getByName("P-256");
        ECDomainParameters domain = new ECDomainParameters(curve);
        ECDSASigner signer = new ECDSASigner(new HMacDSAKCalculator(new SHA256Digest()));
        signer.init(true, new ECPrivateKeyParameters(secret, domain));
        BigInteger[] pair = signer.generateSignature(Bytes.sha256(message));
        try {
            return StandardDSAEncoding.INSTANCE.encode(domain.getN(), pair[0], pair[1]);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
