package mien.client.join;

import java.io.ByteArrayInputStream;
import java.math.BigInteger;
import java.security.GeneralSecurityException;
import java.security.cert.CRLException;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509CRL;
import java.security.cert.X509Certificate;
import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * The registrar's list of revoked certificates: which of its peers a phone has nothing to do with.
 *
 * <p>A coordinator hands the list on, and cannot make one. It could hand on an old one, so that a phone takes none that the
 * registrar signed more than 25 hours ago: for that long a coordinator can keep a revocation from phones, no longer.
 */
public final class RevocationList {
    /** Room for some 400 000 certificates that were revoked before they had ended. */
    public static final int MAX_BYTES = 16 * 1024 * 1024;

    private static final long HOUR_MS = 3_600_000;
    /** A coordinator serves phones for a day after the registrar last confirmed its list. */
    private static final long MAX_AGE_MS = 25 * HOUR_MS;

    private final X509CRL crl;

    private RevocationList(X509CRL crl) {
        this.crl = crl;
    }

    /** Returns the list in an X.509 CRL (DER); throws CERTIFICATE unless the registrar's authority signed it. */
    public static RevocationList parse(byte[] der, X509Certificate authority) {
        X509CRL crl = load(der);
        boolean isOfRegistrar = crl.getIssuerX500Principal().equals(authority.getSubjectX500Principal());
        try {
            if (isOfRegistrar) {
                crl.verify(authority.getPublicKey());
                return new RevocationList(crl);
            }
        } catch (GeneralSecurityException | RuntimeException error) { // Android's parser throws the latter
            throw unsigned(error);
        }
        throw unsigned(null);
    }

    private static X509CRL load(byte[] der) {
        try {
            if (der.length <= MAX_BYTES) {
                CertificateFactory factory = CertificateFactory.getInstance("X.509");
                X509CRL crl = (X509CRL) factory.generateCRL(new ByteArrayInputStream(der));
                if (Arrays.equals(crl.getEncoded(), der) && crl.getThisUpdate() != null) {
                    return crl;
                }
            }
        } catch (CertificateException | CRLException | RuntimeException error) {
            throw damaged(error);
        }
        throw damaged(null);
    }

    /** Returns whether the certificate of that serial number was revoked. */
    public boolean names(BigInteger serial) {
        return crl.getRevokedCertificate(serial) != null;
    }

    /**
     * Throws COHORT for a list that is too old to tell who was revoked, or will not be for too long: one of the future, which
     * a registrar with a wrong clock signed, could be handed on until its time has come.
     */
    public void checkAge(long nowMs) {
        long ageMs = nowMs - crl.getThisUpdate().getTime();
        if (-ageMs > MAX_AGE_MS) {
            throw new MienException(
                    ErrorCode.COHORT,
                    "the list of revoked phones is dated " + -ageMs / HOUR_MS + " hours ahead of this phone's clock; nothing"
                            + " was sent. Check the clock, and tell the operator to check the registrar's");
        }
        if (ageMs > MAX_AGE_MS) {
            throw new MienException(
                    ErrorCode.COHORT,
                    "the coordinator's list of revoked phones is " + ageMs / HOUR_MS + " hours old, and "
                            + MAX_AGE_MS / HOUR_MS + " are the most; nothing was sent, the operator looks after the registrar");
        }
    }

    private static MienException damaged(Throwable cause) {
        return new MienException(
                ErrorCode.CERTIFICATE,
                "the coordinator shows a damaged list of revoked phones; leave this round, and tell the operator",
                cause);
    }

    private static MienException unsigned(Throwable cause) {
        return new MienException(
                ErrorCode.CERTIFICATE,
                "the coordinator shows a list of revoked phones that the registrar did not sign; leave this round",
                cause);
    }
}
