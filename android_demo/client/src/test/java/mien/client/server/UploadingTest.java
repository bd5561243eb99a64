package mien.client.server;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.rounds.Listener;
import mien.client.wire.RoundRef;
import mien.v1.RoundsGrpc;
import mien.v1.RoundsOuterClass.UploadChunk;
import org.junit.Test;

/** A vector leaves the phone only as long as its people agree to it, to the last piece. */
public class UploadingTest {
    private static final byte[] DATA = new byte[700 * 1024];
    private static final int MESSAGES = 4;

    private int messages;
    private int bytes;
    private boolean completed;
    private boolean cancelled;

    /** A server that takes everything, and answers as soon as all is there. */
    private final class Server extends Channel {
        @Override
        public String authority() {
            return "server";
        }

        @Override
        public <Q, A> ClientCall<Q, A> newCall(MethodDescriptor<Q, A> method, CallOptions options) {
            return new ClientCall<Q, A>() {
                private Listener<A> listener;

                @Override
                public void start(Listener<A> answers, Metadata headers) {
                    listener = answers;
                    new Thread(answers::onReady).start();
                }

                @Override
                public void request(int number) {}

                @Override
                public void sendMessage(Q message) {
                    messages++;
                    bytes += ((UploadChunk) message).getData().size();
                }

                @Override
                public void halfClose() {
                    completed = true;
                    listener.onClose(Status.OK, new Metadata());
                }

                @Override
                public void cancel(String why, Throwable cause) {
                    cancelled = true;
                    listener.onClose(Status.CANCELLED, new Metadata());
                }
            };
        }
    }

    private void send(Runnable consent) {
        Uploading.send(
                RoundsGrpc.newStub(new Server()), new RoundRef("task", 1, 1), DATA, new byte[0], 0, consent);
    }

    @Test
    public void whileAllAgreeAllOfItIsSent() {
        send(() -> {});
        assertEquals(MESSAGES, messages);
        assertEquals(DATA.length, bytes);
        assertTrue(completed && !cancelled);
    }

    @Test
    public void aWithdrawalBetweenAnyTwoPiecesStopsIt() {
        for (int after = 0; after <= MESSAGES; after++) {
            int last = after;
            messages = 0;
            cancelled = false;
            Raised.by(
                    ErrorCode.CONFIG,
                    "after " + after,
                    () ->
                            send(
                                    () -> {
                                        if (messages == last) {
                                            throw new MienException(ErrorCode.CONFIG, "withdrawn");
                                        }
                                    }));
            assertEquals(after, messages);
            assertTrue(cancelled);
            assertFalse("never told that it is whole", completed);
        }
    }
}
