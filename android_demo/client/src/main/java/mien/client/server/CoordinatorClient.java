package mien.client.server;

import com.google.protobuf.ByteString;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.io.ByteArrayOutputStream;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.join.Address;
import mien.client.join.Channels;
import mien.client.join.Handshake;
import mien.client.join.Identity;
import mien.client.join.RevocationList;
import mien.client.join.Traffic;
import mien.client.model.Blob;
import mien.client.model.Manifest;
import mien.client.model.ModelStore;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Retry;
import mien.client.wire.RoundRef;
import mien.client.wire.Statuses;
import mien.v1.Common.BlobRef;
import mien.v1.Common.DataChunk;
import mien.v1.ModelsGrpc;
import mien.v1.ModelsOuterClass.DownloadRequest;
import mien.v1.ModelsOuterClass.GetManifestRequest;
import mien.v1.ModelsOuterClass.ModelManifest;
import mien.v1.RoundsGrpc;
import mien.v1.RoundsOuterClass.CheckInReply;
import mien.v1.RoundsOuterClass.CheckInRequest;
import mien.v1.RoundsOuterClass.DownloadReplyRequest;
import mien.v1.RoundsOuterClass.DownloadRevocationsRequest;
import mien.v1.RoundsOuterClass.FollowRoundRequest;
import mien.v1.RoundsOuterClass.LeaveRoundRequest;
import mien.v1.RoundsOuterClass.ProveReleaseRequest;
import mien.v1.RoundsOuterClass.ProveRoundReply;
import mien.v1.RoundsOuterClass.ProveRoundRequest;
import mien.v1.RoundsOuterClass.ReportTrainedRequest;
import mien.v1.RoundsOuterClass.SendStepRequest;
import mien.v1.RoundsOuterClass.SetParticipationRequest;
import mien.v1.RoundsOuterClass.Stage;
import mien.v1.RoundsOuterClass.StageEvent;
import mien.v1.RoundsOuterClass.UploadStatus;
import mien.v1.RoundsOuterClass.UploadStatusRequest;

/** The coordinator as a device sees it: every call may be repeated, transfers go on where they stopped. */
public final class CoordinatorClient implements AutoCloseable, ModelStore.Source {
    private static final String SERVER = "the coordinator";
    private static final long CALL_S = 20;
    /** Long, because the server answers when a round begins. */
    private static final long CHECK_IN_S = 150;

    /** Longest that another replica is waited for, while the one that named it answers. */
    private static final long GLANCE_S = 5;

    /** For so long an address that failed is not gone to again. */
    private static final long LEFT_ALONE_MS = 600_000;

    private static final long STREAM_S = 300;
    private static final long TRANSFER_S = 600;

    /** Told where a round is; returns whether it has heard enough. */
    public interface StageListener {
        /** Hears where a round is; returns whether that is enough. */
        boolean on(StageEvent event);
    }

    public final Identity identity;
    private final Clock clock;
    private final Random random;
    private final Counter counter;
    private final Traffic traffic = new Traffic();
    private volatile Runnable mayGoOn = () -> {};
    private volatile Address address;
    private volatile ManagedChannel channel;
    private volatile RoundsGrpc.RoundsBlockingStub rounds;
    private volatile ModelsGrpc.ModelsBlockingStub models;
    private final LastAddress last;
    private final long patienceMs;
    private String leftAlone = "";
    private long leftAloneUntilMs;

    /** Told at the end how many bytes went each way. */
    public interface Counter {
        /** Hears of bytes that were sent and received since it last did. */
        void count(long sentBytes, long receivedBytes);
    }

    /** Where a device's tasks were run when it was last told, unverified; kept in its home, for it is no secret. */
    public static final class LastAddress {
        static final String FILE = "owner-address";
        private final Folder home;

        /** Keeps it in a home. */
        public LastAddress(Folder home) {
            this.home = home;
        }

        /** Returns where to begin: there, if a device that joined at this address may be led there, or where it joined. */
        synchronized Address from(Address joined) {
            Address led = joined.leadingTo(text());
            return led == null ? joined : led;
        }

        private String text() {
            try {
                byte[] kept = home.read(FILE);
                return kept == null ? "" : Bytes.text(kept);
            } catch (MienException error) {
                return ""; // whatever became of it: it begins where it joined, and is told again
            }
        }

        /** Notes it; empty for where it joined. Where nothing can be written, the next start begins there. */
        synchronized void note(String address) {
            if (address.equals(text())) {
                return;
            }
            try {
                if (address.isEmpty()) {
                    home.delete(FILE);
                } else {
                    home.write(FILE, Bytes.utf8(address));
                }
            } catch (MienException error) {
                return;
            }
        }

        /** Forgets it with the membership that it is of. */
        public void forget() {
            home.delete(FILE);
        }
    }

    /**
     * Connects when it is first used, where {@code last} says; its counter hears of each call's bytes. What fails is tried
     * again until there was no progress for so long ({@link Retry}).
     */
    public CoordinatorClient(
            Identity identity, Clock clock, Random random, Counter counter, LastAddress last, long patienceMs) {
        this.last = last;
        this.patienceMs = patienceMs;
        this.counter = counter;
        this.identity = identity;
        this.clock = clock;
        this.random = random;
        Address begin = last.from(identity.coordinatorAddress);
        use(opened(begin), begin);
    }

    /**
     * Returns a channel to an address, of whichever replica: the certificate has to be for the host where this device
     * joined. Nobody is trusted for an address that he gave.
     */
    private ManagedChannel opened(Address there) {
        return Channels.open(there, identity.coordinatorAddress, identity.coordinatorCa, identity, traffic);
    }

    private void use(ManagedChannel there, Address at) {
        channel = there;
        address = at;
        rounds = RoundsGrpc.newBlockingStub(there);
        models = ModelsGrpc.newBlockingStub(there);
    }

    /** Returns where it is connected to: where this device joined, or the replica that runs its tasks. */
    public Address address() {
        return address;
    }

    /**
     * Goes on at the replica that runs this device's tasks, if it may be followed there and answers; where anything about it
     * fails all stays as it is, and that address is left alone for a while.
     */
    private void goTo(String unverifiedAddress) {
        Address named = identity.coordinatorAddress.leadingTo(unverifiedAddress);
        if (named == null || named.toString().equals(address.toString())) {
            return;
        }
        if (named.toString().equals(leftAlone) && clock.monotonicMs() < leftAloneUntilMs) {
            return;
        }
        ManagedChannel there = opened(named);
        if (!greets(RoundsGrpc.newBlockingStub(there))) {
            there.shutdownNow();
            leaveAlone(named);
            return;
        }
        channel.shutdownNow();
        use(there, named);
        last.note(isWhereItJoined() ? "" : named.toString());
    }

    /** Returns whether a replica greets at once, as it should. */
    private boolean greets(RoundsGrpc.RoundsBlockingStub stub) {
        try {
            Handshake.hello(request -> stub.withDeadlineAfter(GLANCE_S, TimeUnit.SECONDS).hello(request), clock, SERVER);
            return true;
        } catch (StatusRuntimeException | MienException error) {
            return false;
        }
    }

    private boolean isWhereItJoined() {
        return address.toString().equals(identity.coordinatorAddress.toString());
    }

    /** Goes back to where this device joined after a failure at another address; returns whether it did. */
    private boolean goBack(MienException error) {
        ErrorCode code = error.code();
        boolean isAway = code == ErrorCode.UNREACHABLE || code == ErrorCode.DRAINING || code == ErrorCode.CERTIFICATE;
        if (!isAway || isWhereItJoined()) {
            return false;
        }
        goToWhereItJoined();
        return true;
    }

    private void goToWhereItJoined() {
        leaveAlone(address);
        channel.shutdownNow();
        use(opened(identity.coordinatorAddress), identity.coordinatorAddress);
        last.note("");
    }

    private void leaveAlone(Address failed) {
        leftAlone = failed.toString();
        leftAloneUntilMs = clock.monotonicMs() + LEFT_ALONE_MS;
    }

    private Retry patience() {
        return new Retry(clock, random, patienceMs, this::goBack);
    }

    @Override
    public void close() {
        channel.shutdownNow();
        counter.count(traffic.takeSent(), traffic.takeReceived());
    }

    /** Has something asked before each piece of a download; what it throws ends the download. */
    public void askBeforePieces(Runnable question) {
        mayGoOn = question;
    }

    private <T> T call(Retry.Call<T> call) {
        return patience().call(SERVER, call);
    }

    private RoundsGrpc.RoundsBlockingStub soon() {
        return rounds.withDeadlineAfter(CALL_S, TimeUnit.SECONDS);
    }

    /** Agrees on a protocol version and compares clocks. */
    public void hello() {
        if (!isWhereItJoined()) {
            if (greets(rounds)) {
                return;
            }
            goToWhereItJoined();
        }
        call(() -> Handshake.hello(request -> soon().hello(request), clock, SERVER));
    }

    /**
     * Returns what to do now: an assignment or a pause. The server may take its time; where it says that another replica
     * runs this device's tasks, the calls after this one go there. {@code usedUpModels} and {@code usedUpDay} say which sums
     * without phones' own noise the owner's limits leave no room for: over these models to train, or any today.
     */
    public CheckInReply checkIn(
            int minCohort, List<String> methods, List<String> usedUpModels, boolean usedUpDay) {
        CheckInRequest request =
                CheckInRequest.newBuilder()
                        .setPopulation(identity.population)
                        .setSoftware(Handshake.SOFTWARE)
                        .setMinCohort(minCohort)
                        .addAllMethods(methods)
                        .addAllUsedUpModels(usedUpModels)
                        .setUsedUpDay(usedUpDay)
                        .build();
        CheckInReply reply = call(() -> rounds.withDeadlineAfter(CHECK_IN_S, TimeUnit.SECONDS).checkIn(request));
        goTo(reply.getOwnerAddress());
        return reply;
    }

    /** Says that this device has trained; after all have, or the deadline, the cohort is fixed. */
    public void reportTrained(RoundRef ref) {
        ReportTrainedRequest request = ReportTrainedRequest.newBuilder().setRound(ref.message()).build();
        call(() -> soon().reportTrained(request));
    }

    /** Sends this device's message of a stage; throws LATE when it has passed, REPLAY where the server holds another. */
    public void sendStep(RoundRef ref, Stage stage, byte[] message) {
        SendStepRequest request =
                SendStepRequest.newBuilder()
                        .setRound(ref.message())
                        .setStage(stage)
                        .setMessage(ByteString.copyFrom(message))
                        .build();
        call(() -> soon().sendStep(request));
    }

    /** Returns how much of this device's vector has come, and whether it counts. */
    public UploadStatus uploadStatus(RoundRef ref) {
        UploadStatusRequest request = UploadStatusRequest.newBuilder().setRound(ref.message()).build();
        return call(() -> soon().getUploadStatus(request));
    }

    /** Returns whether this device's contribution is complete, checked and counts; false before uploads are open. */
    public boolean uploadAccepted(RoundRef ref) {
        UploadStatusRequest request = UploadStatusRequest.newBuilder().setRound(ref.message()).build();
        Retry retry = patience();
        while (true) {
            try {
                return soon().getUploadStatus(request).getAccepted();
            } catch (StatusRuntimeException error) {
                MienException meaning = Statuses.meaning(error, SERVER);
                if (meaning.code() == ErrorCode.RATE_LIMITED) {
                    return false;
                }
                retry.pause(meaning);
            }
        }
    }

    /**
     * Returns the proof that the log of rounds holds a round; {@code firstSize} is the size of the log seen last. The
     * coordinator may take its time, for the registrar's cosignature.
     */
    public ProveRoundReply proveRound(RoundRef ref, long firstSize) {
        ProveRoundRequest request =
                ProveRoundRequest.newBuilder().setRound(ref.message()).setFirstSize(firstSize).build();
        return call(() -> soon().proveRound(request));
    }

    /** Returns the proof that the log holds a model's release to this device's population, as {@link #proveRound} does. */
    public ProveRoundReply proveRelease(String modelId, long firstSize) {
        ProveReleaseRequest request =
                ProveReleaseRequest.newBuilder().setModelId(modelId).setFirstSize(firstSize).build();
        return call(() -> soon().proveRelease(request));
    }

    /** Returns the registrar's list of revoked certificates (DER), unverified: {@link RevocationList} reads it. */
    public byte[] revocations() {
        return call(
                () -> {
                    ByteArrayOutputStream list = new ByteArrayOutputStream();
                    Context.CancellableContext context = Context.current().withCancellation();
                    try {
                        context.run(
                                () ->
                                        gather(
                                                downloadRevocations(), list, RevocationList.MAX_BYTES,
                                                "a list of revoked phones"));
                    } finally {
                        context.cancel(null);
                    }
                    return list.toByteArray();
                });
    }

    private Iterator<DataChunk> downloadRevocations() {
        return rounds.withDeadlineAfter(TRANSFER_S, TimeUnit.SECONDS)
                .downloadRevocations(DownloadRevocationsRequest.getDefaultInstance());
    }

    /** Writes pieces end to end; throws CORRUPT_DATA for more than {@code most} bytes of {@code what}. */
    static void gather(Iterator<DataChunk> pieces, ByteArrayOutputStream whole, long most, String what) {
        while (pieces.hasNext()) {
            ByteString piece = pieces.next().getData();
            if (piece.size() > most - whole.size()) {
                throw new MienException(
                        ErrorCode.CORRUPT_DATA, SERVER + " sends " + what + " without end; tell the operator");
            }
            byte[] bytes = piece.toByteArray();
            whole.write(bytes, 0, bytes.length);
        }
    }

    /**
     * Returns the long part of what a round's method tells, in memory alone; after a break it goes on from what came. Throws
     * CORRUPT_DATA for more than {@code most} bytes, before any are fetched; other errors as {@link Downloading}.
     */
    public byte[] reply(RoundRef ref, Blob blob, long most) {
        Retry retry = patience();
        Downloading.Source source = (wanted, offset) -> pieces(() -> downloadReply(ref, wanted, offset));
        return Downloading.toMemory(source, retry, blob, most, "what the method tells", mayGoOn);
    }

    private Iterator<DataChunk> downloadReply(RoundRef ref, Blob blob, long offset) {
        DownloadReplyRequest request =
                DownloadReplyRequest.newBuilder()
                        .setRound(ref.message())
                        .setSha256(blob.sha256)
                        .setOffset(offset)
                        .build();
        return rounds.withDeadlineAfter(TRANSFER_S, TimeUnit.SECONDS).downloadReply(request);
    }

    /** Says that a round is not to wait for this device, and why, by a code. */
    public void leave(RoundRef ref, ErrorCode code) {
        LeaveRoundRequest request =
                LeaveRoundRequest.newBuilder().setRound(ref.message()).setErrorCode(code.code()).build();
        call(() -> soon().leaveRound(request));
    }

    /** Asks to be left out of all later rounds, or no longer. */
    public void setParticipation(boolean staysOut) {
        SetParticipationRequest request =
                SetParticipationRequest.newBuilder().setStaysOut(staysOut).setSoftware(Handshake.SOFTWARE).build();
        call(() -> soon().setParticipation(request));
    }

    /** Returns a model's manifest; without an id the released model's. */
    public Manifest manifest(String modelId) {
        GetManifestRequest request = GetManifestRequest.newBuilder().setModelId(modelId).build();
        ModelManifest reply = call(() -> models.withDeadlineAfter(CALL_S, TimeUnit.SECONDS).getManifest(request));
        return new Manifest(
                reply.getModelId(),
                reply.getSpecJson().toByteArray(),
                blob(reply.getTheta()),
                reply.hasPublicShard() ? blob(reply.getPublicShard()) : null,
                reply.getBundleManifest().toByteArray(),
                reply.getBundleSignature().toByteArray());
    }

    private static Blob blob(BlobRef ref) {
        return new Blob(ref.getSha256(), ref.getSizeBytes());
    }

    /** Tells the listener where a round is, whenever that changes, until it has heard enough or the round is over; LATE long past a deadline. */
    public void follow(RoundRef ref, StageListener listener) {
        StageEnds ends = new StageEnds(clock);
        Retry retry = patience();
        FollowRoundRequest request = FollowRoundRequest.newBuilder().setRound(ref.message()).build();
        while (true) {
            MienException error =
                    new MienException(ErrorCode.UNREACHABLE, SERVER + " stopped telling about the round; retry");
            Context.CancellableContext context = Context.current().withCancellation();
            try {
                Iterator<StageEvent> events = open(context, request);
                while (events.hasNext()) {
                    StageEvent event = events.next();
                    retry.progress();
                    if (event.getStage() != Stage.CLOSED && event.getStage() != Stage.ABORTED) {
                        ends.hear(event.getStage(), event.getRemainingMs());
                    }
                    if (listener.on(event) || event.getStage() == Stage.CLOSED || event.getStage() == Stage.ABORTED) {
                        return;
                    }
                }
            } catch (StatusRuntimeException failed) {
                error = Statuses.meaning(failed, SERVER);
            } finally {
                context.cancel(null);
            }
            retry.pause(error);
        }
    }

    private Iterator<StageEvent> open(Context.CancellableContext context, FollowRoundRequest request) {
        Context before = context.attach();
        try {
            return rounds.withDeadlineAfter(STREAM_S, TimeUnit.SECONDS).followRound(request);
        } finally {
            context.detach(before);
        }
    }

    /**
     * Sends a masked vector and returns once the server has it on stable storage and counts it; after an interruption it
     * goes on from the byte that the server has; what fits one piece is first sent without asking for that. {@code
     * consent} is asked before each try and each piece; what it throws ends the upload.
     */
    public void upload(RoundRef ref, byte[] data, byte[] masked, Runnable consent) {
        Retry retry = patience();
        long sent = -1;
        boolean asks = data.length > Uploading.CHUNK_BYTES;
        while (true) {
            consent.run();
            MienException error = new MienException(ErrorCode.UNREACHABLE, SERVER + " took only a part; retry");
            try {
                UploadStatus status = asks ? uploadStatus(ref) : UploadStatus.getDefaultInstance();
                asks = true;
                if (!status.getAccepted()) {
                    if (status.getReceivedBytes() > sent) {
                        sent = status.getReceivedBytes();
                        retry.progress();
                    }
                    RoundsGrpc.RoundsStub stub =
                            RoundsGrpc.newStub(channel).withDeadlineAfter(TRANSFER_S, TimeUnit.SECONDS);
                    status = Uploading.send(stub, ref, data, masked, status.getReceivedBytes(), consent);
                }
                if (status.getAccepted()) {
                    return;
                }
            } catch (StatusRuntimeException failed) {
                error = Statuses.meaning(failed, SERVER);
                if (error.code() == ErrorCode.OFFSET) {
                    error = new MienException(ErrorCode.UNREACHABLE, error.getMessage(), error);
                }
            }
            retry.pause(error);
        }
    }

    /** Fetches a blob into a file named by its hash, from where an earlier try stopped; errors as {@link Downloading}. */
    @Override
    public void download(Blob blob, Folder folder, String what) {
        Retry retry = patience();
        Downloading.toFile(this::open, retry, blob, folder, what + " of " + SERVER, mayGoOn);
    }

    /** Opens a stream of pieces from a byte on. */
    private Downloading.Pieces open(Blob blob, long offset) {
        DownloadRequest request = DownloadRequest.newBuilder().setSha256(blob.sha256).setOffset(offset).build();
        return pieces(() -> models.withDeadlineAfter(TRANSFER_S, TimeUnit.SECONDS).download(request));
    }

    /** Returns a stream that is cancelled once it is closed. */
    private static Downloading.Pieces pieces(Supplier<Iterator<DataChunk>> opened) {
        Context.CancellableContext context = Context.current().withCancellation();
        Context before = context.attach();
        try {
            return new Downloading.Pieces(opened.get(), () -> context.cancel(null));
        } finally {
            context.detach(before);
        }
    }
}
