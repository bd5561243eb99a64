package mien.client.join;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientStreamTracer;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import java.util.concurrent.atomic.AtomicLong;

/** Counts the bytes of messages as they cross the network; headers and the transport's own are not among them. */
public final class Traffic implements ClientInterceptor {
    private final AtomicLong sent = new AtomicLong();
    private final AtomicLong received = new AtomicLong();

    private final ClientStreamTracer.Factory counter =
            new ClientStreamTracer.Factory() {
                @Override
                public ClientStreamTracer newClientStreamTracer(ClientStreamTracer.StreamInfo info, Metadata headers) {
                    return new ClientStreamTracer() {
                        @Override
                        public void outboundWireSize(long bytes) {
                            sent.addAndGet(bytes);
                        }

                        @Override
                        public void inboundWireSize(long bytes) {
                            received.addAndGet(bytes);
                        }
                    };
                }
            };

    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
        return next.newCall(method, options.withStreamTracerFactory(counter));
    }

    /** Returns what was sent since the last call. */
    public long takeSent() {
        return sent.getAndSet(0);
    }

    /** Returns how many bytes came since it was last asked. */
    public long takeReceived() {
        return received.getAndSet(0);
    }
}
