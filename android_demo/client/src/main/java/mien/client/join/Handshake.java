package mien.client.join;

import java.util.function.Function;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.v1.Common.HelloReply;
import mien.v1.Common.HelloRequest;

/** What is said first on a connection: a version that both speak, and whether the clocks agree. */
public final class Handshake {
    public static final String SOFTWARE = "mien-client-jvm 0.1.0";
    private static final int VERSION = 1;
    private static final long TOLERANCE_MS = 300_000;

    private Handshake() {}

    /** Returns how far the server's clock is ahead of ours, in milliseconds; throws VERSION or CERTIFICATE. */
    public static long hello(Function<HelloRequest, HelloReply> call, Clock clock, String peer) {
        HelloRequest request = HelloRequest.newBuilder().addProtocolVersions(VERSION).setSoftware(SOFTWARE).build();
        long before = clock.unixMs();
        HelloReply reply = call.apply(request);
        long skewMs = reply.getUnixMs() - (before + clock.unixMs()) / 2;
        if (reply.getProtocolVersion() != VERSION) {
            throw new MienException(
                    ErrorCode.VERSION, peer + " speaks another version of the protocol; upgrade the older program");
        }
        if (Math.abs(skewMs) > TOLERANCE_MS) {
            throw new MienException(
                    ErrorCode.CERTIFICATE,
                    "this device's clock is " + Math.abs(skewMs) / 1000 + " s off that of " + peer + "; set the clock");
        }
        return skewMs;
    }
}
