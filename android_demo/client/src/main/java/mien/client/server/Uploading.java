package mien.client.server;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnsafeByteOperations;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.util.concurrent.CountDownLatch;
import mien.client.MienException;
import mien.client.wire.Bytes;
import mien.client.wire.RoundRef;
import mien.v1.Common.BlobRef;
import mien.v1.RoundsGrpc;
import mien.v1.RoundsOuterClass.UploadChunk;
import mien.v1.RoundsOuterClass.UploadHeader;
import mien.v1.RoundsOuterClass.UploadStatus;

/** One upload stream, from a byte on; no faster than the network takes it. */
final class Uploading implements ClientResponseObserver<UploadChunk, UploadStatus> {
    static final int CHUNK_BYTES = 256 * 1024;

    private final UploadHeader header;
    private final byte[] data;
    private final Runnable consent;
    private final CountDownLatch done = new CountDownLatch(1);
    private int at;
    private boolean begun;
    private boolean ended;
    private ClientCallStreamObserver<UploadChunk> requests;
    private UploadStatus status;
    private Throwable failure;
    private volatile MienException refusal;

    private Uploading(UploadHeader header, byte[] data, int offset, Runnable consent) {
        this.header = header;
        this.data = data;
        at = offset;
        this.consent = consent;
    }

    /** Returns the server's answer; throws StatusRuntimeException, and what {@code consent} throws before a piece. */
    static UploadStatus send(
            RoundsGrpc.RoundsStub stub, RoundRef ref, byte[] data, byte[] masked, long offset, Runnable consent) {
        BlobRef blob =
                BlobRef.newBuilder().setSha256(Bytes.hex(Bytes.sha256(data))).setSizeBytes(data.length).build();
        UploadHeader header =
                UploadHeader.newBuilder()
                        .setRound(ref.message())
                        .setContribution(blob)
                        .setMasked(ByteString.copyFrom(masked))
                        .build();
        Uploading upload = new Uploading(header, data, (int) offset, consent);
        stub.upload(upload);
        return upload.await();
    }

    private UploadStatus await() {
        try {
            done.await();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            requests.cancel("the program is being stopped", error);
            throw Status.CANCELLED.withCause(error).asRuntimeException();
        }
        if (refusal != null) {
            throw refusal;
        }
        if (failure != null) {
            throw failure instanceof StatusRuntimeException
                    ? (StatusRuntimeException) failure
                    : Status.fromThrowable(failure).asRuntimeException();
        }
        return status == null ? UploadStatus.getDefaultInstance() : status;
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<UploadChunk> stream) {
        requests = stream;
        stream.setOnReadyHandler(this::sendWhileReady);
    }

    private void sendWhileReady() {
        while (requests.isReady() && !ended) {
            try {
                consent.run();
            } catch (MienException error) {
                ended = true;
                refusal = error;
                requests.cancel("the owner takes it back", error);
                return;
            }
            if (!begun) {
                begun = true;
                requests.onNext(UploadChunk.newBuilder().setHeader(header).setOffset(at).build());
            } else if (at < data.length) {
                int length = Math.min(CHUNK_BYTES, data.length - at);
                ByteString piece = UnsafeByteOperations.unsafeWrap(data, at, length);
                requests.onNext(UploadChunk.newBuilder().setOffset(at).setData(piece).build());
                at += length;
            } else {
                ended = true;
                requests.onCompleted();
            }
        }
    }

    @Override
    public void onNext(UploadStatus answer) {
        status = answer;
    }

    @Override
    public void onError(Throwable error) {
        failure = error;
        done.countDown();
    }

    @Override
    public void onCompleted() {
        done.countDown();
    }
}
