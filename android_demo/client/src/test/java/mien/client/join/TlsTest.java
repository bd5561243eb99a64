package mien.client.join;

import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.atomic.AtomicInteger;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.wire.Bytes;
import org.junit.Test;

/** What a device reads of a server that it does not trust yet. */
public class TlsTest {
    /** Of the record that is begun; at a byte every hundredth of a second it takes forty seconds. */
    private static final int RECORD_BYTES = 4096;

    @Test
    public void aHandshakeThatDripsEndsAllTheSame() throws Exception {
        AtomicInteger sent = new AtomicInteger();
        try (ServerSocket listener = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))) {
            Thread server = new Thread(() -> drip(listener, sent));
            server.start();
            Address address = new Address("127.0.0.1:" + listener.getLocalPort());
            Raised.by(ErrorCode.UNREACHABLE, "dripped on", () -> Tls.unverifiedChain(address, 500));
            server.join();
        }
        assertTrue("the phone hung up", sent.get() < RECORD_BYTES);
    }

    private static void drip(ServerSocket listener, AtomicInteger sent) {
        try (Socket caller = listener.accept()) {
            caller.getOutputStream().write(Bytes.unhex("160303100002000ffc0303"));
            while (sent.get() < RECORD_BYTES) {
                Thread.sleep(10);
                caller.getOutputStream().write(0);
                sent.incrementAndGet();
            }
        } catch (IOException | InterruptedException hungUp) {
            return;
        }
    }
}
