package mien.client.join;

import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.security.KeyPair;
import java.security.cert.X509Certificate;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.log.NoteKey;
import mien.client.log.Quorum;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Invite;
import mien.client.wire.Json;
import mien.client.wire.Retry;
import mien.client.wire.Statuses;
import mien.client.wire.Texts;
import mien.v1.RegistrarGrpc;
import mien.v1.RegistrarOuterClass.JoinReply;
import mien.v1.RegistrarOuterClass.JoinRequest;
import mien.v1.RegistrarOuterClass.RenewRequest;

/**
 * Joining a fleet by invite, and renewing the certificate before it ends.
 *
 * <p>The token goes only over a channel verified with the authority whose fingerprint the invite carries. Everything may
 * be repeated after a crash: the same key is used again, the registrar answers the same token and key with the same
 * certificate, and what is stored is stored in one rename.
 */
public final class Joining {
    private static final String FILE = "identity.json";
    private static final String CHECK = "sha256";
    private static final String REGISTRAR = "the registrar";
    /** Longest that the registrar is asked for a renewal; the old certificate may have days left. */
    private static final long RENEWAL_MS = 20_000;

    private static final long CALL_S = 20;
    private static final double RENEW_BELOW = 1.0 / 3;
    private static final byte[] RENEWAL = Bytes.utf8("mien/v1/renew");

    private final Folder folder;
    private final IdentityKeys keys;
    private final Clock clock;
    private final Random random;

    /** Joins for the home in a folder, by keys of these. */
    public Joining(Folder folder, IdentityKeys keys, Clock clock, Random random) {
        this.folder = folder;
        this.keys = keys;
        this.clock = clock;
        this.random = random;
    }

    /** Returns whether this home was let into a fleet, also where its key is gone since. */
    public boolean hasJoined() {
        return folder.has(FILE);
    }

    /**
     * Returns the identity that an invite gives this home, stored; the same invite again returns the same identity.
     * {@code beforeOther} runs before an identity of another device than before is stored.
     *
     * <p>Throws FINGERPRINT for servers that the invite does not name, INVITE for a token that is used up,
     * ALREADY_EXISTS when the home belongs to another fleet, CERTIFICATE when the clock is off, NOT_ATTESTED where the
     * registrar wants more of the key than this phone's hardware attests.
     */
    public Identity join(Invite invite, Runnable beforeOther) {
        String knownWitnessKey = "";
        Quorum knownFurther = Quorum.NONE;
        if (hasJoined()) {
            Fields stored = checkedFile(folder.read(FILE));
            checkSameFleet(stored, invite);
            knownWitnessKey = stored.text("witness_key", "");
            knownFurther = further(stored);
            Identity present = loadUnlessLost();
            if (present != null && present.inviteSha256.equals(invite.sha256())) {
                return present;
            }
        }
        // 1. Which of the certificates that the registrar shows is the one that the invite pins?
        Address address = new Address(invite.registrarAddress);
        List<X509Certificate> chain = Tls.unverifiedChain(address);
        X509Certificate authority = Certificates.findAuthority(chain, invite.registrarCaSha256, REGISTRAR);
        Certificates.checkPeriod(authority, clock.unixMs(), REGISTRAR + "'s");
        // 2. A key for this invite, the same one if this is a repetition, and what hardware attests of it.
        AttestedKey key = keys.toJoin(invite.sha256(), invite.attestationChallenge());
        // 3. The token, over a channel verified with that authority.
        JoinRequest.Builder asked =
                JoinRequest.newBuilder().setToken(invite.token()).setCsrDer(bytes(Csr.of(key.pair)));
        for (byte[] certificate : key.chain) {
            asked.addAttestationChainDer(bytes(certificate));
        }
        JoinRequest request = asked.build();
        JoinReply reply = ask(address, authority, Retry.AT_A_SCREEN_MS, (stub, skewMs) -> admitted(stub, request, invite));
        // 4. The answer is checked piece by piece, then stored as a whole.
        Identity identity = checked(reply, key.pair, authority, invite, address, knownWitnessKey, knownFurther);
        if (!identity.deviceId.equals(deviceId())) {
            beforeOther.run();
        }
        save(identity);
        keys.admitted(invite.sha256());
        return identity;
    }

    /** Returns the registrar's answer; throws NOT_ATTESTED where it refuses what is attested of the key, or that nothing is. */
    private JoinReply admitted(RegistrarGrpc.RegistrarBlockingStub stub, JoinRequest request, Invite invite) {
        try {
            return stub.join(request);
        } catch (StatusRuntimeException error) {
            MienException refusal = Statuses.meaning(error, REGISTRAR);
            // Of a request that is whole, over a channel that is verified, this is all that the word can mean.
            if (refusal.code() != ErrorCode.CERTIFICATE || error.getStatus().getCode() != Status.Code.UNAUTHENTICATED) {
                throw error;
            }
            keys.refused(invite.sha256());
            String what = request.getAttestationChainDerCount() == 0 ? "attests nothing of its key" : "does not attest enough";
            throw new MienException(
                    ErrorCode.NOT_ATTESTED,
                    "this phone's hardware " + what + " (" + refusal.getMessage() + "); the invite is as good as before: try"
                            + " again after an update of the phone, or use another phone",
                    error);
        }
    }

    /**
     * Returns the identity with its next certificate, stored; key and device id stay the same. The registrar is asked again
     * for so long at most, and never longer than {@link #RENEWAL_MS}.
     */
    public Identity renew(long patienceMs) {
        Identity present = load();
        byte[] csr = Csr.of(present.key);
        JoinReply reply =
                ask(
                        present.registrarAddress,
                        present.registrarCa,
                        Math.min(patienceMs, RENEWAL_MS),
                        (stub, skewMs) -> {
                            // By the registrar's clock, so that a slightly wrong one of ours does not stand in the way.
                            long unixMs = clock.unixMs() + skewMs;
                            byte[] message = Bytes.concat(RENEWAL, Bytes.sha256(csr), Bytes.bigEndian(unixMs, 8));
                            return stub.renew(
                                    RenewRequest.newBuilder()
                                            .setCertificateDer(bytes(Certificates.der(present.certificate)))
                                            .setCsrDer(bytes(csr))
                                            .setSignature(bytes(Identity.sign(present.key, message)))
                                            .setUnixMs(unixMs)
                                            .build());
                        });
        String pinned = Certificates.fingerprint(present.coordinatorCa);
        Identity renewed =
                checked(reply, present.key, present.registrarCa, pinned, present.registrarAddress, present.inviteSha256,
                        present.releaseKey, present.witnessKey, present.further);
        if (!renewed.population.equals(present.population)) {
            // There sums would be counted from nothing, and a promised epsilon with them: only an invite moves a device.
            throw new MienException(
                    ErrorCode.CERTIFICATE,
                    "the registrar renewed this device's certificate into another population, which only an invite does; the"
                            + " certificate stays as it was, ask the operator");
        }
        save(renewed);
        return renewed;
    }

    /** Returns whether less than a third of the certificate's life is left. */
    public boolean isRenewalDue(Identity identity) {
        long ends = identity.certificate.getNotAfter().getTime();
        long life = ends - identity.certificate.getNotBefore().getTime();
        return ends - clock.unixMs() < RENEW_BELOW * life;
    }

    /** Throws CERTIFICATE where the identity's certificate is of no use now. */
    public void checkPeriod(Identity identity) {
        Certificates.checkPeriod(identity.certificate, clock.unixMs(), "this device's");
    }

    /** Returns whether this device can reach its registrar now, the one that it trusts. */
    public boolean registrarAnswers(Identity identity) {
        try {
            List<X509Certificate> shown = Tls.unverifiedChain(identity.registrarAddress);
            if (shown.isEmpty() || !Certificates.isIssuedBy(shown.get(0), identity.registrarCa)) {
                return false;
            }
            Certificates.checkPeriod(shown.get(0), clock.unixMs(), REGISTRAR + "'s");
            return true;
        } catch (MienException error) {
            return false;
        }
    }

    /** Returns the id that this home has in its fleet, also where its key is gone; empty before it has joined. */
    public String deviceId() {
        byte[] data = folder.read(FILE);
        return data == null ? "" : checkedFile(data).text("device_id");
    }

    /** Forgets the fleet and destroys the key. */
    public void leave() {
        keys.destroy();
        folder.delete(FILE);
    }

    /** Returns the stored identity; throws INVITE when this home has not joined. */
    public Identity load() {
        byte[] data = folder.read(FILE);
        if (data == null) {
            throw new MienException(ErrorCode.INVITE, "this device has not joined yet; ask the operator for an invite");
        }
        Fields stored = checkedFile(data);
        Identity identity =
                new Identity(
                        stored.text("device_id"),
                        stored.text("population"),
                        new Address(stored.text("registrar_address")),
                        new Address(stored.text("coordinator_address")),
                        certificate(stored, "certificate"),
                        certificate(stored, "registrar_ca"),
                        certificate(stored, "coordinator_ca"),
                        keys.find(stored.text("invite_sha256")),
                        stored.text("invite_sha256"),
                        stored.text("release_key"),
                        stored.text("witness_key", ""), // an earlier version kept none
                        further(stored));
        if (identity.key == null) {
            throw new MienException(
                    ErrorCode.CERTIFICATE, "the key of this device's certificate is gone; join again with a new invite");
        }
        checkOwn(identity.certificate, identity.key, identity.registrarCa);
        return identity;
    }

    /** Returns the file's content; throws CORRUPT_DATA where anything of it was changed. */
    private static Fields checkedFile(byte[] data) {
        MienException damaged =
                new MienException(
                        ErrorCode.CORRUPT_DATA, "the device's identity is damaged; leave, then join again with a new invite");
        Object whole = Json.parse(data, "the device's identity");
        if (!(whole instanceof Map)) {
            throw damaged;
        }
        Map<Object, Object> fields = new LinkedHashMap<>((Map<?, ?>) whole);
        Object check = fields.remove(CHECK);
        if (!Bytes.hex(Bytes.sha256(Bytes.utf8(Json.write(fields)))).equals(check)) {
            throw damaged;
        }
        return Fields.of(fields, "the device's identity");
    }

    private interface Question {
        JoinReply ask(RegistrarGrpc.RegistrarBlockingStub stub, long skewMs);
    }

    private JoinReply ask(Address address, X509Certificate authority, long patienceMs, Question question) {
        ManagedChannel channel = Channels.open(address, authority, null, new Traffic());
        try {
            RegistrarGrpc.RegistrarBlockingStub stub = RegistrarGrpc.newBlockingStub(channel);
            return Retry.call(
                    clock,
                    random,
                    patienceMs,
                    REGISTRAR,
                    () -> {
                        RegistrarGrpc.RegistrarBlockingStub timed = stub.withDeadlineAfter(CALL_S, TimeUnit.SECONDS);
                        return question.ask(timed, Handshake.hello(timed::hello, clock, REGISTRAR));
                    });
        } finally {
            channel.shutdownNow();
        }
    }

    private Identity checked(
            JoinReply reply,
            KeyPair key,
            X509Certificate authority,
            Invite invite,
            Address registrar,
            String knownWitnessKey,
            Quorum knownFurther) {
        String pinned = invite.coordinatorCaSha256;
        return checked(
                reply, key, authority, pinned, registrar, invite.sha256(), "", knownWitnessKey, knownFurther);
    }

    /** Returns the identity in the registrar's answer; throws unless every piece of it is what was pinned or proved. */
    private Identity checked(
            JoinReply reply,
            KeyPair key,
            X509Certificate authority,
            String coordinatorSha256,
            Address registrar,
            String inviteSha256,
            String knownReleaseKey,
            String knownWitnessKey,
            Quorum knownFurther) {
        X509Certificate certificate = Certificates.load(reply.getCertificateDer().toByteArray(), "this device's");
        String[] named = checkOwn(certificate, key, authority);
        Certificates.checkPeriod(certificate, clock.unixMs(), "this device's");
        X509Certificate shown = Certificates.load(reply.getCoordinatorCaDer().toByteArray(), "the coordinator's");
        X509Certificate coordinatorCa =
                Certificates.findAuthority(Collections.singletonList(shown), coordinatorSha256, "the coordinator");
        if (!reply.getDeviceId().equals(named[0]) || !reply.getPopulation().equals(named[1])) {
            throw new MienException(
                    ErrorCode.CERTIFICATE, "the registrar's answer does not fit the certificate it gave; ask the operator");
        }
        String offered = reply.getReleaseKey();
        if (!offered.isEmpty() && !Bytes.isSha256(offered)) {
            throw new MienException(
                    ErrorCode.CERTIFICATE, "the registrar names a release key that cannot be; ask the operator");
        }
        // A renewal brings a release key, and witnesses', to a device that has none, and never others.
        String releaseKey = knownReleaseKey.isEmpty() ? offered : knownReleaseKey;
        String witnessKey = knownWitnessKey.isEmpty() ? offeredWitnessKey(reply) : knownWitnessKey;
        Quorum further = knownFurther.isEmpty() ? offeredFurther(reply) : knownFurther;
        return new Identity(
                named[0], named[1], registrar, new Address(Texts.name(reply.getCoordinatorAddress(), "the coordinator's address")), certificate, authority,
                coordinatorCa, key, inviteSha256, releaseKey, witnessKey, further);
    }

    /** Returns whose cosignatures the log needs as well. */
    private static Quorum offeredFurther(JoinReply reply) {
        try {
            return new Quorum(reply.getFurtherWitnessKeysList(), reply.getFurtherWitnessesNeeded());
        } catch (MienException error) {
            throw impossibleWitness(error);
        }
    }

    private static Quorum further(Fields stored) {
        return stored.has("further_witnesses")
                ? new Quorum(stored.texts("further_witnesses"), stored.count("witnesses_needed", 0))
                : Quorum.NONE; // an earlier version kept none
    }

    /** Returns the key with which the registrar cosigns the log of rounds; empty for a registrar that does not. */
    private static String offeredWitnessKey(JoinReply reply) {
        if (reply.getWitnessKey().isEmpty()) {
            return "";
        }
        try {
            NoteKey key = NoteKey.parse(reply.getWitnessKey());
            if (key.isWitness) {
                return key.toString();
            }
        } catch (MienException error) {
            throw impossibleWitness(error);
        }
        throw impossibleWitness(null);
    }

    private static MienException impossibleWitness(Throwable cause) {
        return new MienException(
                ErrorCode.CERTIFICATE,
                "the registrar names a key for the log of rounds that cannot be; ask the operator",
                cause);
    }

    /** Returns device id and population of our certificate; throws CERTIFICATE unless it is for our key and names us. */
    private static String[] checkOwn(X509Certificate certificate, KeyPair key, X509Certificate authority) {
        if (!Certificates.isIssuedBy(certificate, authority) || !certificate.getPublicKey().equals(key.getPublic())) {
            throw new MienException(
                    ErrorCode.CERTIFICATE, "the registrar gave a certificate that is not ours; join again");
        }
        List<String> uris = Certificates.uris(certificate);
        String device = Certificates.only(uris, Certificates.DEVICE);
        String population = Certificates.only(uris, Certificates.POPULATION);
        if (population == null || !Certificates.deviceId(key.getPublic()).equals(device)) {
            throw new MienException(
                    ErrorCode.CERTIFICATE, "the registrar gave a certificate that names another device; ask the operator");
        }
        return new String[] {device, population};
    }

    /** Returns the stored identity; null before this home has joined, or where its key is gone: an invite gives another. */
    public Identity loadUnlessLost() {
        try {
            return hasJoined() ? load() : null;
        } catch (MienException error) {
            if (error.code() != ErrorCode.CERTIFICATE) {
                throw error;
            }
            return null;
        }
    }

    private static void checkSameFleet(Fields stored, Invite invite) {
        boolean same =
                Certificates.fingerprint(certificate(stored, "registrar_ca")).equals(invite.registrarCaSha256)
                        && Certificates.fingerprint(certificate(stored, "coordinator_ca"))
                                .equals(invite.coordinatorCaSha256);
        if (!same) {
            throw new MienException(
                    ErrorCode.ALREADY_EXISTS,
                    "this home has joined another fleet (population " + stored.text("population") + "); use another home");
        }
    }

    private void save(Identity identity) {
        Map<String, Object> stored = new LinkedHashMap<>();
        stored.put("device_id", identity.deviceId);
        stored.put("population", identity.population);
        stored.put("registrar_address", identity.registrarAddress.toString());
        stored.put("coordinator_address", identity.coordinatorAddress.toString());
        stored.put("certificate", Bytes.hex(Certificates.der(identity.certificate)));
        stored.put("registrar_ca", Bytes.hex(Certificates.der(identity.registrarCa)));
        stored.put("coordinator_ca", Bytes.hex(Certificates.der(identity.coordinatorCa)));
        stored.put("invite_sha256", identity.inviteSha256);
        stored.put("release_key", identity.releaseKey);
        stored.put("witness_key", identity.witnessKey);
        stored.put("further_witnesses", identity.further.lines());
        stored.put("witnesses_needed", identity.further.needed);
        stored.put(CHECK, Bytes.hex(Bytes.sha256(Bytes.utf8(Json.write(stored)))));
        folder.write(FILE, Bytes.utf8(Json.write(stored)));
    }

    private static X509Certificate certificate(Fields stored, String name) {
        try {
            return Certificates.load(Bytes.unhex(stored.text(name)), "the stored");
        } catch (IllegalArgumentException error) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the device's identity is damaged; join again with a new invite", error);
        }
    }

    private static ByteString bytes(byte[] data) {
        return ByteString.copyFrom(data);
    }
}
