package mien.client.join;

import io.grpc.ManagedChannel;
import io.grpc.okhttp.OkHttpChannelBuilder;
import java.security.cert.X509Certificate;
import java.util.concurrent.TimeUnit;

/** Channels to servers whose authority is pinned. */
public final class Channels {
    /** Limit of one message; everything larger is streamed. */
    private static final int MAX_MESSAGE_BYTES = 1024 * 1024;

    private Channels() {}

    /** Returns a channel that trusts one authority only; mutual where {@code identity} is not null. TLS 1.3. */
    public static ManagedChannel open(Address address, X509Certificate authority, Identity identity, Traffic traffic) {
        return open(address, address, authority, identity, traffic);
    }

    /** Returns such a channel to an address whose certificate has to be for the host of another one, {@code known}. */
    public static ManagedChannel open(
            Address address, Address known, X509Certificate authority, Identity identity, Traffic traffic) {
        return OkHttpChannelBuilder.forAddress(address.host, address.port)
                .overrideAuthority(known.authority())
                .sslSocketFactory(Tls.sockets(authority, identity))
                .tlsConnectionSpec(Tls.PROTOCOLS, Tls.CIPHERS)
                .maxInboundMessageSize(MAX_MESSAGE_BYTES)
                // A connection that a phone's network dropped silently is noticed within a minute and a half.
                .keepAliveTime(60, TimeUnit.SECONDS)
                .keepAliveTimeout(20, TimeUnit.SECONDS)
                // Our own repetition decides; the library's would hide how long a server has been gone.
                .disableRetry()
                .intercept(traffic)
                .build();
    }
}
