package mien.client.join;

import java.io.ByteArrayInputStream;
import java.security.GeneralSecurityException;
import java.security.PublicKey;
import java.security.cert.CertificateEncodingException;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.CertificateParsingException;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/** Certificates as a device sees them: which authority it trusts, who it is, and whether a clock is to blame. */
public final class Certificates {
    static final String DEVICE = "mien:device:";
    static final String POPULATION = "mien:population:";
    private static final int MAX_BYTES = 16 * 1024;
    private static final int URI = 6;

    private Certificates() {}

    /** Returns a certificate from DER; throws CERTIFICATE. */
    public static X509Certificate load(byte[] der, String whose) {
        try {
            if (der.length <= MAX_BYTES) {
                CertificateFactory factory = CertificateFactory.getInstance("X.509");
                X509Certificate certificate =
                        (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(der));
                if (Arrays.equals(certificate.getEncoded(), der)) {
                    return certificate;
                }
            }
        } catch (CertificateException error) {
            throw unreadable(whose, error);
        }
        throw unreadable(whose, null);
    }

    private static MienException unreadable(String whose, Throwable cause) {
        return new MienException(
                ErrorCode.CERTIFICATE, whose + " certificate is damaged or of an unknown kind; join again", cause);
    }

    /** Returns a certificate in DER. */
    public static byte[] der(X509Certificate certificate) {
        try {
            return certificate.getEncoded();
        } catch (CertificateEncodingException error) {
            throw unreadable("a", error);
        }
    }

    /** Returns SHA-256 over a certificate's DER, in lower-case hex. */
    public static String fingerprint(X509Certificate certificate) {
        return Bytes.hex(Bytes.sha256(der(certificate)));
    }

    /** Returns whether {@code authority} signed {@code certificate}; says nothing of its period. */
    static boolean isIssuedBy(X509Certificate certificate, X509Certificate authority) {
        try {
            if (!certificate.getIssuerX500Principal().equals(authority.getSubjectX500Principal())) {
                return false;
            }
            certificate.verify(authority.getPublicKey());
            return true;
        } catch (GeneralSecurityException error) {
            return false;
        }
    }

    /** Returns the certificate of a chain that has the invite's fingerprint; throws FINGERPRINT. */
    static X509Certificate findAuthority(List<X509Certificate> chain, String sha256, String who) {
        for (X509Certificate certificate : chain) {
            if (fingerprint(certificate).equals(sha256)) {
                return certificate;
            }
        }
        throw new MienException(
                ErrorCode.FINGERPRINT,
                who + " is not the one that the invite names: none of its certificates has the fingerprint "
                        + sha256.substring(0, 16) + "…; do not join, ask the operator");
    }

    /** Throws CERTIFICATE unless a certificate is valid now. */
    static void checkPeriod(X509Certificate certificate, long nowMs, String whose) {
        if (nowMs < certificate.getNotBefore().getTime()) {
            throw new MienException(
                    ErrorCode.CERTIFICATE,
                    whose + " certificate begins after this device's time: the device's clock is behind; set it");
        }
        if (nowMs > certificate.getNotAfter().getTime()) {
            throw new MienException(
                    ErrorCode.CERTIFICATE,
                    whose + " certificate ended before this device's time: set the clock if it is ahead, else the"
                            + " certificate needs renewal");
        }
    }

    /** Returns a device's id: the first 16 bytes of SHA-256 over its SubjectPublicKeyInfo, in hex. */
    static String deviceId(PublicKey key) {
        return Bytes.hex(Arrays.copyOf(Bytes.sha256(key.getEncoded()), 16));
    }

    /** Returns the URIs among a certificate's names. */
    static List<String> uris(X509Certificate certificate) {
        List<String> found = new ArrayList<>();
        try {
            Collection<List<?>> names = certificate.getSubjectAlternativeNames();
            if (names != null) {
                for (List<?> name : names) {
                    if (Integer.valueOf(URI).equals(name.get(0))) {
                        found.add((String) name.get(1));
                    }
                }
            }
        } catch (CertificateParsingException error) {
            found.clear(); // no name that can be read is no name
        }
        return found;
    }

    /** Returns the one URI of a prefix without it; null where there is none or more than one. */
    static String only(List<String> uris, String prefix) {
        String found = null;
        for (String uri : uris) {
            if (uri.startsWith(prefix)) {
                if (found != null) {
                    return null;
                }
                found = uri.substring(prefix.length());
            }
        }
        return found;
    }
}
