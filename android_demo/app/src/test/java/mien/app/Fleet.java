package mien.app;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.math.BigInteger;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Signature;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.ECGenParameterSpec;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.Map;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import mien.app.keys.FileKeys;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Json;
import org.bouncycastle.asn1.ASN1EncodableVector;
import org.bouncycastle.asn1.ASN1Integer;
import org.bouncycastle.asn1.DERBitString;
import org.bouncycastle.asn1.DERSequence;
import org.bouncycastle.asn1.x500.RDN;
import org.bouncycastle.asn1.x500.X500Name;
import org.bouncycastle.asn1.x509.AlgorithmIdentifier;
import org.bouncycastle.asn1.x509.Extension;
import org.bouncycastle.asn1.x509.ExtensionsGenerator;
import org.bouncycastle.asn1.x509.GeneralName;
import org.bouncycastle.asn1.x509.GeneralNames;
import org.bouncycastle.asn1.x509.SubjectPublicKeyInfo;
import org.bouncycastle.asn1.x509.TBSCertificate;
import org.bouncycastle.asn1.x509.Time;
import org.bouncycastle.asn1.x509.V3TBSCertificateGenerator;
import org.bouncycastle.asn1.x9.X9ObjectIdentifiers;

/** A registrar's paperwork without the registrar: a phone that has joined a fleet whose servers are away. */
public final class Fleet {
    private static final AlgorithmIdentifier ECDSA = new AlgorithmIdentifier(X9ObjectIdentifiers.ecdsa_with_SHA256);
    private static final X500Name AUTHORITY = new X500Name("CN=Mien test authority");
    private static final String HOST = "localhost";
    private static final long DAY_MS = 24L * 60 * 60 * 1000;

    private Fleet() {}

    /** Stores in a phone's home what joining stores there; nobody answers at the address. */
    public static void join(Path home) throws GeneralSecurityException, IOException {
        KeyPair authority = keyPair();
        PublicKey own = new FileKeys(new Folder(home.resolve("keys"))).identity().toJoin("", new byte[0]).pair.getPublic();
        byte[] ca = authority(authority);
        byte[] leaf = device(own, authority);
        Map<String, Object> stored = new LinkedHashMap<>();
        stored.put("device_id", deviceId(own));
        stored.put("population", "demo");
        stored.put("registrar_address", "localhost:9");
        stored.put("coordinator_address", "localhost:9");
        stored.put("certificate", Bytes.hex(leaf));
        stored.put("registrar_ca", Bytes.hex(ca));
        stored.put("coordinator_ca", Bytes.hex(ca));
        stored.put("invite_sha256", Bytes.hex(Bytes.sha256(new byte[0])));
        stored.put("release_key", "");
        stored.put("sha256", Bytes.hex(Bytes.sha256(Bytes.utf8(Json.write(stored)))));
        Files.write(home.resolve("identity.json"), Json.write(stored).getBytes(StandardCharsets.UTF_8));
    }

    /** Returns a server that shows a certificate of its own making to whoever asks, and no more; close it. */
    public static SSLServerSocket stranger() throws GeneralSecurityException, IOException {
        KeyPair own = keyPair();
        SSLContext context = shows(authority(own), own.getPrivate());
        SSLServerSocket server =
                (SSLServerSocket) context.getServerSocketFactory().createServerSocket(0, 5, InetAddress.getLoopbackAddress());
        new Thread(() -> show(server), "stranger").start();
        return server;
    }

    private static void show(SSLServerSocket server) {
        while (true) {
            try (SSLSocket asked = (SSLSocket) server.accept()) {
                asked.startHandshake();
            } catch (IOException closed) {
                if (server.isClosed()) {
                    return;
                }
            }
        }
    }

    static KeyPair keyPair() throws GeneralSecurityException {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
        generator.initialize(new ECGenParameterSpec("secp256r1"));
        return generator.generateKeyPair();
    }

    /** Returns the certificate of an authority that is also a server's here, at {@code localhost}. */
    static byte[] authority(KeyPair key) throws GeneralSecurityException, IOException {
        return certificate(AUTHORITY, key.getPublic(), key.getPrivate(), HOST);
    }

    /** Returns a certificate of a device in the population "demo". */
    static byte[] device(PublicKey key, KeyPair authority) throws GeneralSecurityException, IOException {
        return certificate(
                new X500Name(new RDN[0]), key, authority.getPrivate(),
                "mien:device:" + deviceId(key), "mien:population:demo");
    }

    static String deviceId(PublicKey key) {
        return Bytes.hex(Bytes.sha256(key.getEncoded())).substring(0, 32);
    }

    /** Returns what has a server show one certificate and no more. */
    static SSLContext shows(byte[] shown, PrivateKey key) throws GeneralSecurityException, IOException {
        Certificate certificate =
                CertificateFactory.getInstance("X.509").generateCertificate(new ByteArrayInputStream(shown));
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        store.setKeyEntry("own", key, new char[0], new Certificate[] {certificate});
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, new char[0]);
        SSLContext context = SSLContext.getInstance("TLSv1.3");
        context.init(keys.getKeyManagers(), null, null);
        return context;
    }

    private static byte[] certificate(X500Name subject, PublicKey key, PrivateKey signer, String... named)
            throws GeneralSecurityException, IOException {
        V3TBSCertificateGenerator generator = new V3TBSCertificateGenerator();
        generator.setSerialNumber(new ASN1Integer(BigInteger.ONE));
        generator.setSignature(ECDSA);
        generator.setIssuer(AUTHORITY);
        generator.setStartDate(new Time(new Date(System.currentTimeMillis() - DAY_MS)));
        generator.setEndDate(new Time(new Date(System.currentTimeMillis() + 90 * DAY_MS)));
        generator.setSubject(subject);
        generator.setSubjectPublicKeyInfo(SubjectPublicKeyInfo.getInstance(key.getEncoded()));
        if (named.length > 0) {
            GeneralName[] names = new GeneralName[named.length];
            for (int i = 0; i < named.length; i++) {
                boolean isHost = named[i].equals(HOST);
                names[i] = new GeneralName(isHost ? GeneralName.dNSName : GeneralName.uniformResourceIdentifier, named[i]);
            }
            ExtensionsGenerator extensions = new ExtensionsGenerator();
            extensions.addExtension(Extension.subjectAlternativeName, false, new GeneralNames(names));
            generator.setExtensions(extensions.generate());
        }
        TBSCertificate unsigned = generator.generateTBSCertificate();
        Signature signature = Signature.getInstance("SHA256withECDSA");
        signature.initSign(signer);
        signature.update(unsigned.getEncoded("DER"));
        ASN1EncodableVector parts = new ASN1EncodableVector();
        parts.add(unsigned);
        parts.add(ECDSA);
        parts.add(new DERBitString(signature.sign()));
        return new DERSequence(parts).getEncoded("DER");
    }
}
