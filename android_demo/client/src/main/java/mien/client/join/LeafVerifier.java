package mien.client.join;

import java.math.BigInteger;
import java.security.cert.CertificateParsingException;
import java.security.cert.X509Certificate;
import java.util.Arrays;
import java.util.List;
import java.util.function.Predicate;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.secagg.VerifiedLeaf;
import mien.client.secagg.VerifyLeaf;
import mien.client.wire.Bytes;

/**
 * Who a leaf certificate of the cohort names: the registrar's authority vouches, and nobody else can.
 *
 * <p>A coordinator that makes up devices has to ask the registrar for their certificates.
 */
public final class LeafVerifier implements VerifyLeaf {
    /** Phones' clocks are off by minutes: a certificate's edge does not decide who is in a cohort. */
    private static final long TOLERANCE_MS = 10 * 60 * 1000;

    private static final String CLIENT_AUTH = "1.3.6.1.5.5.7.3.2";

    private final X509Certificate authority;
    private final String population;
    private final Clock clock;
    private final Predicate<BigInteger> isRevoked;

    /** {@code isRevoked} says of a serial number whether the registrar has revoked that certificate. */
    public LeafVerifier(
            X509Certificate authority, String population, Clock clock, Predicate<BigInteger> isRevoked) {
        this.authority = authority;
        this.population = population;
        this.clock = clock;
        this.isRevoked = isRevoked;
    }

    @Override
    public VerifiedLeaf verify(byte[] der) {
        X509Certificate leaf = Certificates.load(der, "a device's");
        if (!Certificates.isIssuedBy(leaf, authority)) {
            throw refused("was not issued by the registrar's authority: somebody made it up; leave this round");
        }
        long now = clock.unixMs();
        if (now < leaf.getNotBefore().getTime() - TOLERANCE_MS || now > leaf.getNotAfter().getTime() + TOLERANCE_MS) {
            throw refused("is not valid now; check the clock, or that device has to join again");
        }
        if (leaf.getVersion() != 3 || leaf.getBasicConstraints() != -1 || !isForClients(leaf)) {
            throw refused("is not a device's; leave this round");
        }
        if (isRevoked.test(leaf.getSerialNumber())) {
            throw new MienException(
                    ErrorCode.COHORT,
                    "the registrar has revoked a phone of this cohort; nothing was sent, this phone waits for another one");
        }
        return named(leaf);
    }

    private static boolean isForClients(X509Certificate leaf) {
        try {
            List<String> usages = leaf.getExtendedKeyUsage();
            boolean[] uses = leaf.getKeyUsage();
            boolean signs = uses != null && uses.length > 0 && uses[0];
            return signs && usages != null && usages.contains(CLIENT_AUTH) && !leaf.hasUnsupportedCriticalExtension();
        } catch (CertificateParsingException error) {
            return false;
        }
    }

    private VerifiedLeaf named(X509Certificate leaf) {
        List<String> uris = Certificates.uris(leaf);
        String device = Certificates.only(uris, Certificates.DEVICE);
        String named = Certificates.only(uris, Certificates.POPULATION);
        if (uris.size() != 2 || device == null || !population.equals(named)) {
            throw refused("is not for a device of this population; leave this round");
        }
        byte[] id = Arrays.copyOf(Bytes.sha256(leaf.getPublicKey().getEncoded()), 16);
        if (!device.equals(Bytes.hex(id))) {
            throw refused("names another device than its key; leave this round");
        }
        return new VerifiedLeaf(id, leaf.getPublicKey(), Admission.unixS(leaf), Admission.isAttested(leaf));
    }

    private static MienException refused(String why) {
        return new MienException(ErrorCode.CERTIFICATE, "a certificate in the cohort " + why);
    }
}
