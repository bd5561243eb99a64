package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import org.junit.Test;
import org.robolectric.RuntimeEnvironment;

/** Deleting everything on a phone that has joined. */
public class DeletingTest extends ScreenRunner {
    @Test
    public void aCoordinatorThatIsAwayKeepsNothingFromBeingDeleted() throws IOException, GeneralSecurityException {
        join();
        phone().device.gallery.enrol("Ada", new byte[3][112 * 112 * 3], new float[] {1, 0}, "model", 1, true);
        String device = phone().device.identity().deviceId;
        Path home = phone().home();
        Deleting.Done done = Deleting.everything(RuntimeEnvironment.getApplication(), 200);
        assertEquals(device, done.deviceId);
        assertFalse("nobody was there to be told", done.told);
        assertFalse(Files.exists(home));
        assertFalse(phone().device.hasJoined());
    }

    @Test
    public void whatIsDamagedIsDeletedAllTheSame() throws IOException, GeneralSecurityException {
        join();
        Path home = phone().home();
        Files.write(home.resolve("identity.json"), new byte[] {'?'});
        Deleting.Done done = Deleting.everything(RuntimeEnvironment.getApplication());
        assertFalse(done.told);
        assertFalse(Files.exists(home));
    }
}
