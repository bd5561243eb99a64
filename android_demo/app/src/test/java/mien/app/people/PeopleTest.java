package mien.app.people;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.app.AlertDialog;
import android.content.Intent;
import android.view.View;
import android.view.ViewGroup;
import android.view.WindowManager;
import android.widget.EditText;
import android.widget.Switch;
import android.widget.TextView;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import mien.app.Extras;
import mien.app.MainActivity;
import mien.app.OwnersScreen;
import mien.app.Phone;
import mien.app.R;
import mien.app.ScreenRunner;
import mien.app.enrol.EnrolActivity;
import mien.app.settings.LimitActivity;
import mien.app.training.TrainingActivity;
import mien.client.Inside;
import mien.client.people.Gallery;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;
import org.robolectric.shadows.ShadowActivity;
import org.robolectric.shadows.ShadowAlertDialog;
import org.robolectric.shadows.ShadowSystemClock;
import org.robolectric.util.ReflectionHelpers;
import org.robolectric.util.ReflectionHelpers.ClassParameter;

/** Who is enrolled, their agreement, removing them, and deleting everything, over a real gallery in a folder. */
public class PeopleTest extends ScreenRunner {
    @Test
    public void peopleAreListedForTheOwnerAlone() throws IOException {
        enrol("Ada", 5, true);
        enrol("Grace", 3, false);
        Activity screen = opened(PeopleActivity.class);
        ViewGroup people = screen.findViewById(R.id.people);
        assertEquals(2, people.getChildCount());
        TextView facts = people.getChildAt(0).findViewById(R.id.row_text);
        assertTrue(facts.getText().toString(), facts.getText().toString().startsWith("5 pictures, enrolled "));
        assertTrue("no screenshot shows names", isSecure(screen));
        draw(screen, "people");
    }

    @Test
    public void whoseRecordIsDamagedIsListedAndCanBeRemoved() throws IOException {
        int ada = enrol("Ada", 5, true);
        enrol("Grace", 3, false);
        Files.write(phoneHome().resolve("gallery/person-000001"), new byte[] {'?'});
        Activity people = opened(PeopleActivity.class);
        ViewGroup rows = people.findViewById(R.id.people);
        assertEquals(2, rows.getChildCount());
        TextView name = rows.getChildAt(0).findViewById(R.id.row_title);
        assertEquals("Person 1 (damaged)", name.getText().toString());
        Activity screen = opened(PersonActivity.class, ada);
        await("what helps is said", () -> text(screen, R.id.person_facts).contains("enrol them again"));
        assertFalse(screen.findViewById(R.id.person_trains).isEnabled());
        screen.findViewById(R.id.person_remove).performClick();
        ShadowAlertDialog.getLatestAlertDialog().getButton(AlertDialog.BUTTON_POSITIVE).performClick();
        await("they are removed", () -> device().people().size() == 1);
        assertEquals("Grace", device().people().get(0).name);
    }

    @Test
    public void aLockedPhoneAsksFirst() {
        enrol("Ada", 5, true);
        lock();
        Activity screen = Robolectric.buildActivity(PeopleActivity.class).setup().get();
        assertEquals(null, screen.findViewById(R.id.people));
        Intent asked = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        assertEquals("android.app.action.CONFIRM_DEVICE_CREDENTIAL", asked.getAction());
        Shadows.shadowOf(screen).receiveResult(asked, Activity.RESULT_CANCELED, null);
        assertTrue("whoever cannot answer sees nothing", screen.isFinishing());

        screen = Robolectric.buildActivity(PeopleActivity.class).setup().get();
        asked = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        Shadows.shadowOf(screen).receiveResult(asked, Activity.RESULT_OK, null);
        Activity answered = screen;
        await("people are shown", () -> ((ViewGroup) answered.findViewById(R.id.people)).getChildCount() == 1);
    }

    @Test
    public void whoeverComesBackLaterIsAskedAgain() {
        int ada = enrol("Ada", 5, true);
        lock();
        for (Class<? extends Activity> kind :
                Arrays.asList(PersonActivity.class, PeopleActivity.class, DeleteActivity.class, EnrolActivity.class, LimitActivity.class)) {
            phone().owner.came();
            Intent intent = new Intent().putExtra(Extras.PERSON, ada);
            ActivityController<? extends Activity> controller = Robolectric.buildActivity(kind, intent).setup();
            Activity screen = controller.get();
            View content = screen.findViewById(android.R.id.content);
            controller.pause().stop().restart().start().resume();
            assertNull(kind + " within the minute", Shadows.shadowOf(screen).getNextStartedActivityForResult());
            controller.pause().stop();
            ShadowSystemClock.advanceBy(Duration.ofHours(5));
            controller.restart().start();
            ShadowActivity.IntentForResult asked = Shadows.shadowOf(screen).getNextStartedActivityForResult();
            assertNotNull(kind + " asks", asked);
            assertEquals(kind + " shows nothing", View.INVISIBLE, content.getVisibility());
            controller.resume().pause().stop().restart().start();
            assertNull(kind + " asks once", Shadows.shadowOf(screen).getNextStartedActivityForResult());
            Shadows.shadowOf(screen).receiveResult(asked.intent, Activity.RESULT_OK, null);
            assertEquals(kind + " shows it again", View.VISIBLE, content.getVisibility());
            controller.resume().pause().stop();
            ShadowSystemClock.advanceBy(Duration.ofHours(5));
            controller.restart().start();
            asked = Shadows.shadowOf(screen).getNextStartedActivityForResult();
            Shadows.shadowOf(screen).receiveResult(asked.intent, Activity.RESULT_CANCELED, null);
            assertTrue(kind + " closes to whoever cannot answer", screen.isFinishing());
        }
    }

    @Test
    public void turningTheScreenAsksNoSecondQuestion() {
        lock();
        phone().owner.came();
        ActivityController<EnrolActivity> controller = Robolectric.buildActivity(EnrolActivity.class).setup();
        ((EditText) controller.get().findViewById(R.id.enrol_name)).setText("Ada");
        controller.get().findViewById(R.id.enrol_recognises).performClick();
        controller.recreate();
        assertTrue("what was agreed to may begin", controller.get().findViewById(R.id.enrol_begin).isEnabled());
        ShadowSystemClock.advanceBy(Duration.ofHours(1));
        controller.recreate();
        ShadowActivity.IntentForResult asked = Shadows.shadowOf(controller.get()).getNextStartedActivityForResult();
        assertNotNull(asked);
        for (int i = 0; i < 2; i++) {
            controller.recreate();
            assertNull(Shadows.shadowOf(controller.get()).getNextStartedActivityForResult());
        }
        ReflectionHelpers.callInstanceMethod(
                OwnersScreen.class,
                controller.get(),
                "onActivityResult",
                ClassParameter.from(int.class, asked.requestCode),
                ClassParameter.from(int.class, Activity.RESULT_OK),
                ClassParameter.from(Intent.class, null));
        assertEquals("Ada", text(controller.get(), R.id.enrol_name));
        assertTrue(controller.get().findViewById(R.id.enrol_begin).isEnabled());
    }

    @Test
    @Config(qualifiers = GERMAN)
    public void theSwitchShowsWhatIsKeptAfterAFailure() throws IOException {
        for (boolean trains : new boolean[] {true, false}) {
            int person = enrol(trains ? "Ada" : "Grace", 5, trains);
            Activity screen = opened(PersonActivity.class, person);
            await("the person is shown", () -> !text(screen, R.id.person_name).isEmpty());
            Switch shown = screen.findViewById(R.id.person_trains);
            Path gallery = phoneHome().resolve("gallery");
            Path away = phoneHome().resolve("away");
            Files.move(gallery, away);
            Files.write(gallery, new byte[1]); // neither written nor read: a disk that fails
            shown.performClick();
            await("that is said", () -> isShown(screen, R.id.message));
            await("the switch goes back", () -> shown.isChecked() == trains);
            Files.delete(gallery);
            Files.move(away, gallery);
            assertEquals(trains, person(person).trains);
        }
    }

    private static Path phoneHome() {
        return RuntimeEnvironment.getApplication().getNoBackupFilesDir().toPath().resolve("mien");
    }

    @Test
    public void whoAgreedLearnsThatTrainingIsOff() throws IOException {
        int ada = enrol("Ada", 5, true);
        ActivityController<PersonActivity> controller =
                Robolectric.buildActivity(PersonActivity.class, new Intent().putExtra(Extras.PERSON, ada)).setup();
        PersonActivity screen = controller.get();
        String off = screen.getString(R.string.trains_off);
        await("that is said", () -> text(screen, R.id.person_trains_text).equals(off));
        draw(screen, "person-off");
        screen.findViewById(R.id.person_training).performClick();
        String opened = Shadows.shadowOf(screen).getNextStartedActivity().getComponent().getClassName();
        assertEquals(TrainingActivity.class.getName(), opened);
        phone().choices.agree(true, true);
        controller.pause().resume();
        await("whoever comes back sees it on", () -> !isShown(screen, R.id.person_training));
        assertEquals(screen.getString(R.string.person_trains_yes), text(screen, R.id.person_trains_text));
    }

    @Test
    @Config(qualifiers = GERMAN_NIGHT)
    public void agreementIsWithdrawnAndGiven() throws IOException {
        phone().choices.agree(true, true);
        int ada = enrol("Ada", 5, true);
        Activity screen = opened(PersonActivity.class, ada);
        Switch trains = screen.findViewById(R.id.person_trains);
        await("the person is shown", trains::isChecked);
        trains.performClick();
        await("agreement is withdrawn", () -> !person(ada).trains);
        await("that is said", () -> text(screen, R.id.person_trains_text).equals(screen.getString(R.string.person_trains_no)));
        draw(screen, "person-de-night");
        trains.performClick();
        await("agreement is given", () -> person(ada).trains);
    }

    @Test
    public void removingAsksFirst() throws IOException {
        phone().choices.agree(true, true);
        int ada = enrol("Ada", 5, true);
        enrol("Grace", 3, false);
        Activity screen = opened(PersonActivity.class, ada);
        await("the person is shown", () -> text(screen, R.id.person_name).equals("Ada"));
        draw(screen, "person");
        screen.findViewById(R.id.person_remove).performClick();
        AlertDialog asks = ShadowAlertDialog.getLatestAlertDialog();
        drawDialog(screen, asks, "person-remove");
        assertEquals("nothing is removed before the answer", 2, device().people().size());
        asks.getButton(AlertDialog.BUTTON_POSITIVE).performClick();
        await("the screen closes", screen::isFinishing);
        assertEquals(1, device().people().size());
        assertEquals("Grace", device().people().get(0).name);
    }

    @Test
    public void everythingIsDeletedAfterTheWordWasTyped() throws IOException {
        enrol("Ada", 5, true);
        phone().choices.agree(true, true);
        Path home = RuntimeEnvironment.getApplication().getNoBackupFilesDir().toPath().resolve("mien");
        Activity screen = opened(DeleteActivity.class);
        EditText word = screen.findViewById(R.id.delete_word);
        word.setText("no");
        assertFalse(screen.findViewById(R.id.delete_do).isEnabled());
        word.setText("delete ");
        assertTrue(screen.findViewById(R.id.delete_do).isEnabled());
        draw(screen, "delete");
        assertFalse("until then it leads to where one came from", goBack(screen));
        Phone before = phone();
        screen.findViewById(R.id.delete_do).performClick();
        await("everything is deleted", () -> isShown(screen, R.id.deleted));
        assertEquals(screen.getString(R.string.deleted_never_joined), text(screen, R.id.deleted_text));
        draw(screen, "deleted");
        assertFalse(Files.exists(home));
        assertNotEquals("a new phone begins", before, phone());
        assertFalse(phone().choices.welcomed());
        assertTrue(device().people().isEmpty());
    }

    @Test
    public void turningTheScreenLosesNothingOfADeletion() throws IOException, GeneralSecurityException {
        join();
        phone().choices.agree(true, true);
        String device = device().identity().deviceId;
        // The coordinator is away, and knows already: nobody has to be waited for.
        Files.write(phoneHome().resolve("participation.json"), "{\"wanted\":true,\"told\":true}".getBytes(StandardCharsets.UTF_8));
        ActivityController<DeleteActivity> controller = Robolectric.buildActivity(DeleteActivity.class).setup();
        ((EditText) controller.get().findViewById(R.id.delete_word)).setText("delete");
        CountDownLatch turns = new CountDownLatch(1);
        phone().work.run(() -> waited(turns), waited -> {}, error -> {});
        controller.get().findViewById(R.id.delete_do).performClick();
        controller.recreate();
        DeleteActivity turned = controller.get();
        assertFalse("it is not begun twice", turned.findViewById(R.id.delete_do).isEnabled());
        assertEquals(turned.getString(R.string.delete_working), text(turned, R.id.message));
        turns.countDown();
        await("the end is told", () -> isShown(turned, R.id.deleted));
        controller.recreate();
        DeleteActivity again = controller.get();
        assertEquals(again.getString(R.string.deleted_told, device), text(again, R.id.deleted_text));
        assertFalse(isShown(again, R.id.message) || isShown(again, R.id.delete_asking));
        again.findViewById(R.id.back).performClick();
        Intent next = Shadows.shadowOf(again).getNextStartedActivity();
        assertEquals("what lies below is gone", MainActivity.class.getName(), next.getComponent().getClassName());
        assertTrue(goBack(again));
        next = Shadows.shadowOf(again).getNextStartedActivity();
        assertEquals("by the gesture, too", MainActivity.class.getName(), next.getComponent().getClassName());
        phone().choices.agree(true, false);
        Activity later = Robolectric.buildActivity(DeleteActivity.class).setup().get();
        assertTrue("whoever begins anew may delete anew", isShown(later, R.id.delete_asking));
    }

    private static int enrol(String name, int pictures, boolean agrees) {
        byte[][] crops = new byte[pictures][112 * 112 * 3];
        return Inside.gallery(device()).enrol(name, crops, new float[] {1, 0}, "model", System.currentTimeMillis(), agrees);
    }

    private static Gallery.Person person(int id) {
        return Inside.gallery(device()).person(id);
    }

    private static boolean isSecure(Activity screen) {
        return (screen.getWindow().getAttributes().flags & WindowManager.LayoutParams.FLAG_SECURE) != 0;
    }

    private static Activity opened(Class<? extends Activity> kind) {
        Activity screen = Robolectric.buildActivity(kind).setup().get();
        ViewGroup people = screen.findViewById(R.id.people);
        if (people != null) {
            await("people are shown", () -> people.getChildCount() > 0);
        }
        return screen;
    }

    private static Activity opened(Class<? extends Activity> kind, int person) {
        Intent intent = new Intent().putExtra(Extras.PERSON, person);
        return Robolectric.buildActivity(kind, intent).setup().get();
    }
}
