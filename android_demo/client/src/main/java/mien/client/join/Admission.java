package mien.client.join;

import java.math.BigInteger;
import java.security.cert.CertificateEncodingException;
import java.security.cert.X509Certificate;
import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;
import org.bouncycastle.asn1.ASN1ObjectIdentifier;
import org.bouncycastle.asn1.x509.Certificate;
import org.bouncycastle.asn1.x509.Extension;
import org.bouncycastle.asn1.x509.Extensions;

/**
 * When the registrar admitted a phone, as each of its certificates says: renewals begin anew, this does not. Beside it, of a
 * phone whose hardware attested its key when it joined, that the registrar found that to hold.
 */
final class Admission {
    private static final String ADMITTED = "2.25.149382064017731940427561829044531102987";
    private static final String ATTESTED = "2.25.147696108575841789305212359625639135796";

    private static final int INTEGER = 2;
    private static final byte[] NULL = {5, 0};
    private static final int MAX_NUMBER_BYTES = 8;

    private Admission() {}

    /**
     * Returns when a certificate's phone was admitted, in seconds since 1970; one of an earlier registrar tells its own
     * beginning only. Throws CERTIFICATE where the certificate says it in another form than a DER INTEGER.
     */
    static long unixS(X509Certificate leaf) {
        byte[] data = extension(leaf, ADMITTED);
        if (data == null) {
            return leaf.getNotBefore().getTime() / 1000;
        }
        boolean isInteger =
                data.length > 2
                        && data.length <= 2 + MAX_NUMBER_BYTES
                        && data[0] == INTEGER
                        && data[1] == data.length - 2;
        byte[] number = isInteger ? Arrays.copyOfRange(data, 2, data.length) : new byte[] {-1};
        BigInteger unixS = new BigInteger(number);
        if (unixS.signum() < 0 || !Arrays.equals(unixS.toByteArray(), number)) {
            throw unreadable("an admission");
        }
        return unixS.longValue();
    }

    /** Returns whether the registrar says that hardware attested the key of a certificate's phone; throws CERTIFICATE. */
    static boolean isAttested(X509Certificate leaf) {
        byte[] data = extension(leaf, ATTESTED);
        if (data != null && !Arrays.equals(data, NULL)) {
            throw unreadable("an attestation");
        }
        return data != null;
    }

    /**
     * Returns an extension's value, null where there is none. Read by Bouncy Castle: Android's own parser knows no object
     * identifier with a number of more than 64 bits, and says that there is no such extension.
     */
    private static byte[] extension(X509Certificate leaf, String oid) {
        try {
            Extensions all = Certificate.getInstance(leaf.getEncoded()).getTBSCertificate().getExtensions();
            Extension found = all == null ? null : all.getExtension(new ASN1ObjectIdentifier(oid));
            return found == null ? null : found.getExtnValue().getOctets();
        } catch (CertificateEncodingException | IllegalArgumentException damaged) {
            throw unreadable("an extension");
        }
    }

    private static MienException unreadable(String what) {
        return new MienException(
                ErrorCode.CERTIFICATE,
                "a device's certificate has " + what + " that cannot be read; that device joins again");
    }
}
