package mien.app.join;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.content.Intent;
import android.view.WindowManager;
import android.widget.EditText;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import javax.net.ssl.SSLServerSocket;
import mien.app.Extras;
import mien.app.Fleet;
import mien.app.R;
import mien.app.Registrar;
import mien.app.ScreenRunner;
import mien.app.scan.ScanActivity;
import mien.client.wire.Invite;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;

/** Joining, as far as it comes without a registrar: what an invite names, and what is said when it does not work. */
public class JoinTest extends ScreenRunner {
    private static final String PINS =
            "&rf=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
                    + "&cf=ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"
                    + "&t=AAAAAAAAAAAAAAAAAAAAAAAA";

    private static final String INVITE = "mien://join?r=registrar.example:7440" + PINS;

    @Test
    public void whatIsNoWholeInviteIsSaidToBeNone() throws IOException {
        Activity screen = opened();
        typed(screen, "mien://join?r=registrar.example:7440&rf=0011");
        assertEquals(screen.getString(R.string.join_not_whole), text(screen, R.id.message));
        assertTrue(isShown(screen, R.id.asking));
        draw(screen, "join-not-whole");
    }

    @Test
    public void noScreenshotShowsAnInvite() throws IOException {
        for (Class<? extends Activity> kind : Arrays.asList(JoinActivity.class, ScanActivity.class)) {
            Activity screen = Robolectric.buildActivity(kind).setup().get();
            int flags = screen.getWindow().getAttributes().flags;
            assertTrue(kind.getName(), (flags & WindowManager.LayoutParams.FLAG_SECURE) != 0);
        }
    }

    @Test
    public void whoRunsItIsShownBeforeAnythingIsSent() throws IOException {
        Activity screen = opened();
        typed(screen, " mien://join?r=registrar.example:7440" + PINS + "\n");
        assertFalse(isShown(screen, R.id.message));
        assertEquals("registrar.example:7440", text(screen, R.id.address));
        await("there is a code to compare", screen.findViewById(R.id.join)::isEnabled);
        assertEquals(Invite.parse(INVITE).code(), text(screen, R.id.code).replace('\n', ' '));
        assertEquals("halves of one length", 9, text(screen, R.id.code).indexOf('\n'));
        assertFalse("whoever wants more asks for it", isShown(screen, R.id.fingerprints));
        assertTrue(isShown(screen, R.id.uncompared));
        assertTrue(isShown(screen, R.id.join));
        assertFalse(device().hasJoined());
        draw(screen, "join-compare");
        screen.findViewById(R.id.whole).performClick();
        assertTrue(isShown(screen, R.id.fingerprints));
        String registrar = text(screen, R.id.registrar);
        assertTrue(registrar, registrar.startsWith("0011 2233 4455 6677\n8899 aabb"));
        drawWhole(screen, "join-compare-whole");
    }

    @Test
    public void aCodeThatComesLateIsNotShownForAnotherInvite() {
        Activity screen = opened();
        typed(screen, INVITE);
        typed(screen, INVITE.replace("rf=00", "rf=ff"));
        await("there is a code to compare", screen.findViewById(R.id.join)::isEnabled);
        String other = Invite.parse(INVITE.replace("rf=00", "rf=ff")).code();
        assertEquals(Fingerprint.inTwoLines(other), text(screen, R.id.code));
    }

    @Test
    public void whatWasComparedIsJoinedWhateverTheFieldSays() throws IOException, GeneralSecurityException {
        try (Registrar registrar = new Registrar()) {
            Activity screen = opened();
            typed(screen, registrar.invite('A'));
            await("there is a code to compare", screen.findViewById(R.id.join)::isEnabled);
            screen.<EditText>findViewById(R.id.invite).setText("mien://join?r=localhost:9" + PINS);
            screen.findViewById(R.id.join).performClick();
            await("it has joined", () -> isShown(screen, R.id.joined));
            assertTrue(device().hasJoined());
        }
    }

    @Test
    @Config(qualifiers = GERMAN)
    public void aScannedInviteIsTakenAsOneThatWasPasted() throws IOException {
        Activity screen = opened();
        screen.findViewById(R.id.scan).performClick();
        Intent asked = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        assertEquals("mien.app.scan.ScanActivity", asked.getComponent().getClassName());
        Intent found = new Intent().putExtra(Extras.INVITE, "mien://join?r=registrar.example:7440" + PINS);
        Shadows.shadowOf(screen).receiveResult(asked, Activity.RESULT_OK, found);
        assertTrue(isShown(screen, R.id.asked));
        await("there is a code to compare", screen.findViewById(R.id.join)::isEnabled);
        drawWhole(screen, "join-compare-de");
    }

    @Test
    @Config(qualifiers = NIGHT)
    public void whoIsNotWhoTheInviteNamesGetsNoToken() throws IOException, GeneralSecurityException {
        try (SSLServerSocket stranger = Fleet.stranger()) {
            Activity screen = opened();
            typed(screen, "mien://join?r=localhost:" + stranger.getLocalPort() + PINS);
            screen.findViewById(R.id.join).performClick();
            await("it is refused", () -> isRefused(screen));
            assertTrue("another try is possible", screen.findViewById(R.id.join).isEnabled());
            assertFalse(device().hasJoined());
            drawWhole(screen, "join-stranger-night");
        }
    }

    /** Returns whether that is said; tries again where this machine was too busy to answer in time. */
    private static boolean isRefused(Activity screen) {
        if (text(screen, R.id.message).equals(screen.getString(R.string.join_no_answer))) {
            screen.findViewById(R.id.join).performClick();
        }
        return text(screen, R.id.message).equals(screen.getString(R.string.error_fingerprint));
    }

    @Test
    public void anExpiredInviteIsSaidToBeOne() throws IOException, GeneralSecurityException {
        try (Registrar registrar = new Registrar()) {
            registrar.expire('A');
            Activity screen = opened();
            typed(screen, registrar.invite('A'));
            screen.findViewById(R.id.join).performClick();
            String told = "This invite does not work: it is cut off, expired or used up. Ask for a new one.";
            await("that is said", () -> text(screen, R.id.message).equals(told));
            assertFalse(device().hasJoined());
            assertTrue("it is not joined by again", isShown(screen, R.id.spent) && !isShown(screen, R.id.asked));
            screen.findViewById(R.id.spent_paste).performClick();
            assertFalse("the message goes with the invite", isShown(screen, R.id.message));
            typed(screen, registrar.invite('B'));
            screen.findViewById(R.id.join).performClick();
            await("another one works", () -> isShown(screen, R.id.joined));
            assertTrue(device().hasJoined());
            assertEquals("its token is nobody's business", "", text(screen, R.id.invite));
        }
    }

    @Test
    @Config(qualifiers = GERMAN)
    public void aUsedInviteIsSaidToBeOne() throws IOException, GeneralSecurityException {
        try (Registrar registrar = new Registrar()) {
            registrar.use('A');
            Activity screen = opened();
            typed(screen, registrar.invite('A'));
            screen.findViewById(R.id.join).performClick();
            String told = "Diese Einladung gilt nicht: Sie ist abgeschnitten, abgelaufen oder verbraucht. Bitten Sie um eine neue.";
            await("that is said", () -> text(screen, R.id.message).equals(told));
            assertTrue("another invite is all that helps", isShown(screen, R.id.spent) && !isShown(screen, R.id.asked));
            screen.findViewById(R.id.spent_scan).performClick();
            assertNotNull("it is scanned", Shadows.shadowOf(screen).getNextStartedActivityForResult());
            drawWhole(screen, "join-used-de");
        }
    }

    @Test
    public void anotherFleetIsNotJoinedBesides() throws IOException, GeneralSecurityException {
        try (Registrar own = new Registrar();
                Registrar other = new Registrar()) {
            device().join(own.invite('A'));
            Activity screen = opened();
            typed(screen, other.invite('A'));
            screen.findViewById(R.id.join).performClick();
            await("that is said", () -> text(screen, R.id.message).equals(screen.getString(R.string.join_other_fleet)));
        }
    }

    @Test
    public void nobodyAnswers() throws IOException {
        Activity screen = opened();
        typed(screen, "mien://join?r=localhost:9" + PINS);
        await("there is a code to compare", screen.findViewById(R.id.join)::isEnabled);
        screen.findViewById(R.id.join).performClick();
        await("that is said", () -> text(screen, R.id.message).equals(screen.getString(R.string.join_no_answer)));
        assertTrue("the invite stays good", isShown(screen, R.id.join) && screen.findViewById(R.id.join).isEnabled());
        draw(screen, "join-no-network");
    }

    @Test
    public void whatIsComparedAndWhatIsUnderWayOutlivesTurning() throws IOException, GeneralSecurityException {
        try (Registrar registrar = new Registrar()) {
            registrar.expire('A');
            ActivityController<JoinActivity> held = Robolectric.buildActivity(JoinActivity.class).setup();
            typed(held.get(), registrar.invite('A'));
            await("there is a code to compare", held.get().findViewById(R.id.join)::isEnabled);
            String code = text(held.get(), R.id.code);
            Activity turned = held.recreate().get();
            assertTrue("what was asked is asked still", isShown(turned, R.id.asked) && !isShown(turned, R.id.asking));
            await("there is a code to compare", turned.findViewById(R.id.join)::isEnabled);
            assertEquals(code, text(turned, R.id.code));
            Runnable go = hold();
            turned.findViewById(R.id.join).performClick();
            assertFalse("no other one is looked at meanwhile", turned.findViewById(R.id.other).isEnabled());
            Activity again = held.recreate().get();
            assertEquals(again.getString(R.string.join_working), text(again, R.id.message));
            go.run();
            await("the new screen says how it ended", () -> isShown(again, R.id.spent));
            assertTrue(again.findViewById(R.id.other).isEnabled());
        }
    }

    @Test
    public void whoHasJoinedSeesThatAlsoWhenTheScreenIsTurned() throws IOException, GeneralSecurityException {
        try (Registrar registrar = new Registrar()) {
            ActivityController<JoinActivity> held = Robolectric.buildActivity(JoinActivity.class).setup();
            typed(held.get(), registrar.invite('A'));
            await("there is a code to compare", held.get().findViewById(R.id.join)::isEnabled);
            Runnable go = hold();
            held.get().findViewById(R.id.join).performClick();
            Activity turned = held.recreate().get();
            go.run();
            await("it has joined", () -> isShown(turned, R.id.joined));
            String joined = text(turned, R.id.joined);
            Activity again = held.recreate().get();
            assertTrue(isShown(again, R.id.joined) && !isShown(again, R.id.asking));
            assertEquals(joined, text(again, R.id.joined));
            await("it can be left", () -> isShown(again, R.id.done));
        }
    }

    private static Activity opened() {
        return Robolectric.buildActivity(JoinActivity.class).setup().get();
    }

    private static void typed(Activity screen, String invite) {
        ((EditText) screen.findViewById(R.id.invite)).setText(invite);
        screen.findViewById(R.id.look).performClick();
    }
}
