package mien.app.keys;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.content.pm.PackageManager;
import android.security.keystore.StrongBoxUnavailableException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.ProviderException;
import mien.app.App;
import mien.app.ScreenRunner;
import mien.client.store.Folder;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;
import org.robolectric.util.ReflectionHelpers;

/** How keys are asked of AndroidKeyStore: here of one that is made up. */
@Config(application = App.class)
public class HardwareTest extends ScreenRunner {
    private Path path;

    @Before
    public void begin() throws IOException {
        FakeKeyStore.install();
        path = Files.createTempDirectory("keys");
    }

    @After
    public void end() {
        FakeKeyStore.uninstall();
    }

    private AndroidKeys keys() {
        return new AndroidKeys(RuntimeEnvironment.getApplication(), new Folder(path));
    }

    private static void say(int version) {
        ReflectionHelpers.setStaticField(android.os.Build.VERSION.class, "SDK_INT", version);
    }

    @Test
    public void aStrongBoxThatDoesNotDoItIsPassedBy() {
        PackageManager packages = RuntimeEnvironment.getApplication().getPackageManager();
        Shadows.shadowOf(packages).setSystemFeature(PackageManager.FEATURE_STRONGBOX_KEYSTORE, true);
        keys().identity().loadOrCreate();
        assertTrue(FakeKeyStore.lastMade().isStrongBoxBacked());
        for (ProviderException how :
                new ProviderException[] {new StrongBoxUnavailableException(), new ProviderException("Failed to generate")}) {
            keys().destroy();
            FakeKeyStore.failInStrongBox(how);
            keys().identity().loadOrCreate();
            assertFalse(how.toString(), FakeKeyStore.lastMade().isStrongBoxBacked());
            assertEquals(32, keys().sealing().make("rounds").getEncoded().length);
        }
    }

    /** On these the key store deletes with the screen lock what waits for it to be unlocked. */
    @Test
    public void onAndroid12To14NoKeyWaitsForTheScreenLock() {
        int real = android.os.Build.VERSION.SDK_INT;
        try {
            for (int version = 29; version <= 36; version++) {
                say(version);
                keys().sealing().make(WrappedKeys.GALLERY);
                boolean loses = version >= 31 && version <= 34;
                assertEquals("Android's level " + version, !loses, FakeKeyStore.lastMade().isUnlockedDeviceRequired());
            }
            byte[] key = keys().sealing().make(WrappedKeys.GALLERY).getEncoded();
            say(34); // what an earlier version of the app sealed so is sealed anew as soon as it opens
            keys().openWhileLocked(false);
            assertFalse(Files.exists(path.resolve("gallery.unlocked")));
            assertFalse(FakeKeyStore.lastMade().isUnlockedDeviceRequired());
            assertArrayEquals(key, keys().sealing().find(WrappedKeys.GALLERY).getEncoded());
        } finally {
            say(real);
        }
    }
}
