package mien.app.keys;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import android.content.pm.PackageManager;
import android.security.keystore.StrongBoxUnavailableException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.ProviderException;
import java.security.PublicKey;
import java.util.Collections;
import mien.app.App;
import mien.app.ScreenRunner;
import mien.client.join.AttestedKey;
import mien.client.join.IdentityKeys;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
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
    private static final String FIRST = String.join("", Collections.nCopies(32, "ab"));
    private static final String SECOND = String.join("", Collections.nCopies(32, "cd"));
    private static final byte[] CHALLENGE = Bytes.sha256(Bytes.utf8("the first"));

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
        keys().identity().toJoin(FIRST, CHALLENGE);
        assertTrue(FakeKeyStore.lastMade().isStrongBoxBacked());
        for (ProviderException how :
                new ProviderException[] {new StrongBoxUnavailableException(), new ProviderException("Failed to generate")}) {
            keys().destroy();
            FakeKeyStore.failInStrongBox(how);
            keys().identity().toJoin(FIRST, CHALLENGE);
            assertFalse(how.toString(), FakeKeyStore.lastMade().isStrongBoxBacked());
            assertEquals(32, keys().sealing().make("rounds").getEncoded().length);
        }
    }

    @Test
    public void aKeyIsAttestedForItsOwnInvite() {
        IdentityKeys identity = keys().identity();
        assertNull(identity.find(FIRST));
        AttestedKey first = identity.toJoin(FIRST, CHALLENGE);
        assertArrayEquals(CHALLENGE, FakeKeyStore.lastMade().getAttestationChallenge());
        assertEquals("the key's own certificate, and who vouches for it", 2, first.chain.size());
        byte[] told = Bytes.concat(first.pair.getPublic().getEncoded(), CHALLENGE);
        assertArrayEquals(told, first.chain.get(0));
        AttestedKey again = keys().identity().toJoin(FIRST, CHALLENGE);
        assertEquals("a repetition shows the same", first.pair.getPublic(), again.pair.getPublic());
        assertArrayEquals(told, again.chain.get(0));
        AttestedKey second = identity.toJoin(SECOND, Bytes.sha256(CHALLENGE));
        assertNotEquals(first.pair.getPublic(), second.pair.getPublic());
        assertEquals("the phone is whom it was until it has joined anew", first.pair.getPublic(), identity.find(FIRST).getPublic());
        identity.admitted(SECOND);
        assertNull(identity.find(FIRST));
        assertEquals(second.pair.getPublic(), identity.find(SECOND).getPublic());
        identity.destroy();
        assertNull(identity.find(SECOND));
    }

    @Test
    public void aPhoneThatCannotAttestHasAKeyAllTheSame() {
        FakeKeyStore.attestNothing(true);
        IdentityKeys identity = keys().identity();
        AttestedKey bare = identity.toJoin(FIRST, CHALLENGE);
        assertTrue(bare.chain.isEmpty());
        FakeKeyStore.attestNothing(false); // it was for want of a network, say
        AttestedKey same = identity.toJoin(FIRST, CHALLENGE);
        assertEquals("an answer may have been lost", bare.pair.getPublic(), same.pair.getPublic());
        identity.refused(FIRST);
        assertEquals("the next one can do better", 2, identity.toJoin(FIRST, CHALLENGE).chain.size());
    }

    @Test
    public void aPhoneThatJoinedWithAnEarlierVersionIsWhomItWas() throws GeneralSecurityException {
        PublicKey earlier = FakeKeyStore.makeEarlier("mien.identity").getPublic();
        assertEquals(earlier, keys().identity().find(FIRST).getPublic());
        assertNotEquals(earlier, keys().identity().toJoin(SECOND, CHALLENGE).pair.getPublic());
        assertEquals(earlier, keys().identity().find(FIRST).getPublic());
        keys().identity().admitted(SECOND);
        assertNull(keys().identity().find(FIRST));
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
