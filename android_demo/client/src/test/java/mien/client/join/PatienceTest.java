package mien.client.join;

import static org.junit.Assert.assertTrue;

import java.security.cert.X509Certificate;
import java.util.Random;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Still;
import mien.client.Vectors;
import mien.client.log.Quorum;
import mien.client.server.CoordinatorClient;
import mien.client.store.Folder;
import mien.client.wire.Retry;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Who waits at a screen hears soon that nobody answers; work by night goes on asking. */
public class PatienceTest {
    @Rule public final TemporaryFolder temporary = new TemporaryFolder();

    private long askedMs(long patienceMs) throws Exception {
        byte[] der = Vectors.load("golden/secagg/round_n9_two_losses.json").at("authority").bytes();
        X509Certificate any = Certificates.load(der, "the authority's");
        Address nobody = new Address("127.0.0.1:1");
        Identity identity = new Identity("00", "p", nobody, nobody, any, any, any, null, "", "", "", Quorum.NONE);
        Still clock = new Still(0);
        CoordinatorClient.LastAddress last = new CoordinatorClient.LastAddress(new Folder(temporary.getRoot().toPath()));
        try (CoordinatorClient client =
                new CoordinatorClient(identity, clock, new Random(1), (sent, received) -> {}, last, patienceMs)) {
            Raised.by(ErrorCode.UNREACHABLE, "nobody is at the address", client::hello);
        }
        return clock.monotonicMs();
    }

    @Test
    public void whoWaitsAtAScreenIsToldSoon() throws Exception {
        long asked = askedMs(Retry.AT_A_SCREEN_MS);
        assertTrue("asked more than once: " + asked, asked > 0);
        assertTrue("told within ten seconds: " + asked, asked <= 10_000);
    }

    @Test
    public void workByNightGoesOnAsking() throws Exception {
        long asked = askedMs(Retry.PATIENT_MS);
        assertTrue("a minute and longer: " + asked, asked > 60_000);
    }
}
