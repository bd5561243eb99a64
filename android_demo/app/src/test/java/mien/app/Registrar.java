package mien.app;

import com.google.protobuf.ByteString;
import io.grpc.BindableService;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCredentials;
import io.grpc.Status;
import io.grpc.okhttp.OkHttpServerBuilder;
import io.grpc.okhttp.SslSocketFactoryServerCredentials;
import io.grpc.okhttp.internal.ConnectionSpec;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyPair;
import java.security.PublicKey;
import java.security.spec.X509EncodedKeySpec;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import mien.client.wire.Bytes;
import mien.v1.Common.HelloReply;
import mien.v1.Common.HelloRequest;
import mien.v1.RegistrarGrpc;
import mien.v1.RegistrarOuterClass.JoinReply;
import mien.v1.RegistrarOuterClass.JoinRequest;
import org.bouncycastle.asn1.pkcs.CertificationRequest;
import org.bouncycastle.asn1.x509.SubjectPublicKeyInfo;
import org.robolectric.util.ReflectionHelpers;

/**
 * A registrar in this process, over real TLS and gRPC: it admits a phone by each of its invites once, and refuses as the
 * real one does ({@code tests/android} has that one).
 */
public final class Registrar extends RegistrarGrpc.RegistrarImplBase implements AutoCloseable {
    private static final Metadata.Key<String> CODE = Metadata.Key.of("mien-error", Metadata.ASCII_STRING_MARSHALLER);

    private static final int AWAY = 9;

    private final KeyPair authority = Fleet.keyPair();
    private final byte[] certificate = Fleet.authority(authority);
    private final Server server;
    private final int coordinatorPort;
    private final Map<String, String> usedBy = new HashMap<>();
    private final Set<String> expired = new HashSet<>();

    public Registrar() throws GeneralSecurityException, IOException {
        this(null);
    }

    /** One beside which a coordinator answers; null where it is away. */
    public Registrar(BindableService coordinator) throws GeneralSecurityException, IOException {
        OkHttpServerBuilder builder = OkHttpServerBuilder.forPort(0, credentials()).addService(this);
        if (coordinator != null) {
            builder.addService(coordinator);
        }
        server = builder.build().start();
        coordinatorPort = coordinator == null ? AWAY : server.getPort();
    }

    /** Returns TLS 1.3, which the library's server speaks only if it is told by a class that it does not come with. */
    private ServerCredentials credentials() throws GeneralSecurityException, IOException {
        ServerCredentials credentials =
                SslSocketFactoryServerCredentials.create(
                        Fleet.shows(certificate, authority.getPrivate()).getSocketFactory());
        ConnectionSpec newest = new ConnectionSpec.Builder(ConnectionSpec.MODERN_TLS).tlsVersions("TLSv1.3").build();
        ReflectionHelpers.setField(credentials, "connectionSpec", newest);
        return credentials;
    }

    /** Returns an invite; another one for each letter. */
    public String invite(char letter) {
        String pin = Bytes.hex(Bytes.sha256(certificate));
        return "mien://join?r=localhost:" + server.getPort() + "&rf=" + pin + "&cf=" + pin + "&t=" + token(letter);
    }

    private static String token(char letter) {
        return "AAAAAAAAAAAAAAAAAAAAAAA" + letter;
    }

    /** Has another phone join by an invite. */
    public synchronized void use(char letter) {
        usedBy.put(token(letter), "another");
    }

    /** Has an invite's time be over. */
    public synchronized void expire(char letter) {
        expired.add(token(letter));
    }

    @Override
    public void hello(HelloRequest request, StreamObserver<HelloReply> answer) {
        answer.onNext(HelloReply.newBuilder().setProtocolVersion(1).setUnixMs(System.currentTimeMillis()).build());
        answer.onCompleted();
    }

    @Override
    public synchronized void join(JoinRequest request, StreamObserver<JoinReply> answer) {
        try {
            PublicKey key = key(request.getCsrDer().toByteArray());
            String device = Fleet.deviceId(key);
            if (expired.contains(request.getToken())) {
                refuse(answer, "this invite has expired; ask the operator for a new one");
            } else if (!device.equals(usedBy.computeIfAbsent(request.getToken(), token -> device))) {
                refuse(answer, "this invite was used by another device; ask the operator for a new one");
            } else {
                answer.onNext(admitted(key, device));
                answer.onCompleted();
            }
        } catch (GeneralSecurityException | IOException error) {
            answer.onError(Status.INTERNAL.withCause(error).asRuntimeException());
        }
    }

    private JoinReply admitted(PublicKey key, String device) throws GeneralSecurityException, IOException {
        return JoinReply.newBuilder()
                .setDeviceId(device)
                .setPopulation("demo")
                .setCertificateDer(ByteString.copyFrom(Fleet.device(key, authority)))
                .setRegistrarCaDer(ByteString.copyFrom(certificate))
                .setCoordinatorCaDer(ByteString.copyFrom(certificate))
                .setCoordinatorAddress("localhost:" + coordinatorPort)
                .build();
    }

    private static PublicKey key(byte[] request) throws GeneralSecurityException, IOException {
        SubjectPublicKeyInfo shown =
                CertificationRequest.getInstance(request).getCertificationRequestInfo().getSubjectPublicKeyInfo();
        return KeyFactory.getInstance("EC").generatePublic(new X509EncodedKeySpec(shown.getEncoded()));
    }

    private static void refuse(StreamObserver<JoinReply> answer, String why) {
        Metadata trailers = new Metadata();
        trailers.put(CODE, "invite");
        answer.onError(Status.UNAUTHENTICATED.withDescription(why).asRuntimeException(trailers));
    }

    @Override
    public void close() {
        server.shutdownNow();
    }
}
