package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.widget.EditText;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import mien.app.join.JoinActivity;
import mien.app.people.DeleteActivity;
import mien.app.training.TrainingActivity;
import mien.client.Inside;
import mien.client.Status;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;

/** A phone that has joined, and whose keys are gone: what home offers, and what it leads to. */
public class LostKeyTest extends ScreenRunner {
    private static String joinAndLose(Registrar registrar) throws IOException {
        phone().choices.agree(true, true);
        String id = device().join(registrar.invite('A')).deviceId;
        enrolAda();
        lose("keys/identity");
        return id;
    }

    private static void enrolAda() {
        Inside.gallery(device()).enrol("Ada", new byte[3][112 * 112 * 3], new float[] {1, 0}, "model", 1, true);
    }

    private static void lose(String folder) throws IOException {
        try (Stream<Path> inside = Files.walk(phone().home().resolve(folder))) {
            List<Path> files = inside.filter(Files::isRegularFile).collect(Collectors.toList());
            assertFalse("there is a key to lose", files.isEmpty());
            for (Path file : files) {
                Files.delete(file);
            }
        }
    }

    private static Activity home(int title) {
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        await("home says how to go on", () -> text(home, R.id.next_title).equals(home.getString(title)));
        return home;
    }

    private static String opens(Activity screen, int button) {
        screen.findViewById(button).performClick();
        return Shadows.shadowOf(screen).getNextStartedActivity().getComponent().getClassName();
    }

    private static void join(Activity screen, String invite) {
        ((EditText) screen.findViewById(R.id.invite)).setText(invite);
        screen.findViewById(R.id.look).performClick();
        screen.findViewById(R.id.join).performClick();
    }

    @Test
    public void homeLeadsBackIntoTheFleetByANewInvite() throws IOException, GeneralSecurityException {
        try (Registrar registrar = new Registrar()) {
            String before = joinAndLose(registrar);
            Activity home = home(R.string.lost_title);
            assertTrue(text(home, R.id.next_more), text(home, R.id.next_more).endsWith(before));
            assertTrue("it recognises all the same", isShown(home, R.id.next_recognise));
            draw(home, "home-lost");
            assertEquals(JoinActivity.class.getName(), opens(home, R.id.next));

            Activity screen = Robolectric.buildActivity(JoinActivity.class).setup().get();
            join(screen, registrar.invite('A'));
            await("the old invite is used up", () -> text(screen, R.id.message).equals(screen.getString(R.string.error_invite)));
            join(screen, registrar.invite('B'));
            await("it joins again", () -> isShown(screen, R.id.joined));
            Status status = device().status();
            assertTrue(status.joined && !status.lostKey);
            assertNotEquals("as another phone", before, status.deviceId);
            assertEquals("whoever was enrolled stays, with their agreement", 1, status.numAgreed);
            Activity again = home(R.string.next_verify);
            assertFalse(isShown(again, R.id.next_recognise) || isShown(again, R.id.next_more));
        }
    }

    @Test
    @Config(qualifiers = GERMAN_NIGHT)
    public void nothingTrainsMeanwhile() throws IOException, GeneralSecurityException {
        try (Registrar registrar = new Registrar()) {
            joinAndLose(registrar);
            Activity screen = Robolectric.buildActivity(TrainingActivity.class).setup().get();
            String lost = "Der Schlüssel dieses Telefons ist verloren";
            await("that is said", () -> text(screen, R.id.training_state).equals(lost));
            assertFalse(isShown(screen, R.id.training_now));
            draw(home(R.string.lost_title), "home-lost-de-night");
        }
    }

    @Test
    public void theOldNameIsToldWhenEverythingIsDeleted() throws IOException, GeneralSecurityException {
        try (Registrar registrar = new Registrar()) {
            String before = joinAndLose(registrar);
            Deleting.Done done = everythingDeleted(25_000);
            assertEquals(before, done.deviceId);
            assertFalse("nobody is told by a phone that cannot say who it is", done.told);
        }
    }

    @Test
    public void whatOpensNeverMoreLeadsToDeleting() throws IOException, GeneralSecurityException {
        join();
        phone().choices.agree(true, true);
        enrolAda();
        lose("keys");
        ((App) RuntimeEnvironment.getApplication()).forget(); // as when the phone is started again
        Activity home = home(R.string.people_lost_title);
        assertEquals(home.getString(R.string.error_key_lost), text(home, R.id.next_text));
        assertFalse("there is nobody to compare with", isShown(home, R.id.next_recognise));
        assertEquals(DeleteActivity.class.getName(), opens(home, R.id.next));
    }
}
