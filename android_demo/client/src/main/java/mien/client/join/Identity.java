package mien.client.join;

import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.ProviderException;
import java.security.Signature;
import java.security.cert.X509Certificate;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.log.Quorum;
import mien.client.secagg.SumIdentity;
import mien.client.wire.Bytes;

/** A device that has joined: its name in the fleet, what it proves that with, and whom it trusts. */
public final class Identity {
    public final String deviceId;
    public final String population;
    public final Address registrarAddress;
    public final Address coordinatorAddress;
    public final X509Certificate certificate;
    public final X509Certificate registrarCa;
    public final X509Certificate coordinatorCa;
    final KeyPair key;
    final String inviteSha256;
    /** The operator's key that has to have signed every release; empty where the fleet has none. */
    public final String releaseKey;
    /** The key (NAME+ID+KEY) whose cosignature is asked for on the log of rounds; empty until the registrar names one. */
    public final String witnessKey;
    /** Whose cosignatures the log of rounds needs besides. */
    public final Quorum further;

    Identity(
            String deviceId,
            String population,
            Address registrarAddress,
            Address coordinatorAddress,
            X509Certificate certificate,
            X509Certificate registrarCa,
            X509Certificate coordinatorCa,
            KeyPair key,
            String inviteSha256,
            String releaseKey,
            String witnessKey,
            Quorum further) {
        this.deviceId = deviceId;
        this.population = population;
        this.registrarAddress = registrarAddress;
        this.coordinatorAddress = coordinatorAddress;
        this.certificate = certificate;
        this.registrarCa = registrarCa;
        this.coordinatorCa = coordinatorCa;
        this.key = key;
        this.inviteSha256 = inviteSha256;
        this.releaseKey = releaseKey;
        this.witnessKey = witnessKey;
        this.further = further;
    }

    /** Returns when the registrar admitted this device, in seconds since 1970; renewals change nothing of that. */
    public long admittedUnixS() {
        return Admission.unixS(certificate);
    }

    /** Returns who this device is in a private sum. */
    public SumIdentity forSums() {
        return new SumIdentity(Bytes.unhex(deviceId), Certificates.der(certificate), message -> sign(key, message));
    }

    /** Returns an ASN.1 signature over SHA-256, by a key that may live in hardware. */
    static byte[] sign(KeyPair key, byte[] message) {
        try {
            Signature signature = Signature.getInstance("SHA256withECDSA");
            signature.initSign(key.getPrivate());
            signature.update(message);
            return signature.sign();
        } catch (GeneralSecurityException | ProviderException error) {
            throw new MienException(
                    ErrorCode.KEY_STORE, "the key store did not sign; nothing is lost, unlock the phone, then retry", error);
        }
    }

    @Override
    public String toString() {
        return "Identity(" + deviceId + ", " + population + ")";
    }
}
