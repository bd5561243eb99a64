package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import mien.client.Inside;
import org.junit.Test;

/** Deleting everything on a phone that has joined. */
public class DeletingTest extends ScreenRunner {
    @Test
    public void aCoordinatorThatIsAwayKeepsNothingFromBeingDeleted() throws IOException, GeneralSecurityException {
        join();
        Inside.gallery(device()).enrol("Ada", new byte[3][112 * 112 * 3], new float[] {1, 0}, "model", 1, true);
        String device = device().identity().deviceId;
        Path home = phone().home();
        Deleting.Done done = everythingDeleted(200);
        assertEquals(device, done.deviceId);
        assertFalse("nobody was there to be told", done.told);
        assertFalse(Files.exists(home));
        assertFalse(device().hasJoined());
    }

    @Test
    public void whatIsDamagedIsDeletedAllTheSame() throws IOException, GeneralSecurityException {
        join();
        Path home = phone().home();
        Files.write(home.resolve("identity.json"), new byte[] {'?'});
        Deleting.Done done = everythingDeleted(25_000);
        assertFalse(done.told);
        assertFalse(Files.exists(home));
    }
}
