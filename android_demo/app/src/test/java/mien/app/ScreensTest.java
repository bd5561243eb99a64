package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.content.Intent;
import android.graphics.Insets;
import android.view.View;
import android.view.ViewGroup;
import android.view.WindowInsets;
import android.widget.CheckBox;
import android.widget.ImageView;
import android.widget.TextView;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import mien.app.join.JoinActivity;
import mien.app.people.DeleteActivity;
import mien.app.settings.LicencesActivity;
import mien.app.settings.SelfTestActivity;
import mien.app.settings.SettingsActivity;
import mien.app.training.TrainingActivity;
import mien.app.welcome.WelcomeActivity;
import mien.client.Device;
import mien.client.Inside;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;

/** Home, the first run and the self-test. */
public class ScreensTest extends ScreenRunner {
    private static void shows(Activity home, int title) {
        await(home.getString(title), () -> text(home, R.id.next_title).equals(home.getString(title)));
    }

    @Test
    public void homeLeadsOnStepByStep() throws IOException {
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        shows(home, R.string.next_welcome);
        home.findViewById(R.id.next).performClick();
        String opened = Shadows.shadowOf(home).getNextStartedActivity().getComponent().getClassName();
        assertEquals(WelcomeActivity.class.getName(), opened);
        draw(home, "home-first");

        phone().choices.agree(true, false);
        home = Robolectric.buildActivity(MainActivity.class).setup().get();
        shows(home, R.string.next_join);
        home.findViewById(R.id.next).performClick();
        opened = Shadows.shadowOf(home).getNextStartedActivity().getComponent().getClassName();
        assertEquals(JoinActivity.class.getName(), opened);
    }

    @Test
    @Config(qualifiers = GERMAN_NIGHT, fontScale = 2f)
    public void homeWithLargeTypeByNight() throws IOException {
        phone().choices.agree(true, true);
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        shows(home, R.string.next_join);
        assertEquals("Als Nächstes: einer Flotte beitreten", text(home, R.id.next_title));
        drawWhole(home, "home-de-night-large");
    }

    @Test
    public void homeOfAPhoneThatJoined() throws IOException, GeneralSecurityException {
        join();
        phone().choices.agree(true, true);
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        shows(home, R.string.next_model);
        Inside.gallery(device()).enrol("Ada", new byte[3][112 * 112 * 3], new float[] {1, 0}, "model", 1, true);
        Activity ready = Robolectric.buildActivity(MainActivity.class).setup().get();
        shows(ready, R.string.next_verify);
        assertEquals(ready.getString(R.string.next_verify_text), text(ready, R.id.next_text));
        draw(ready, "home");
    }

    @Test
    public void whatCanBeTouchedIsLargeEnoughAndSaysWhatItIs() {
        List<Class<? extends Activity>> kinds =
                Arrays.asList(
                        MainActivity.class, WelcomeActivity.class, JoinActivity.class, TrainingActivity.class,
                        SettingsActivity.class, DeleteActivity.class, SelfTestActivity.class, LicencesActivity.class);
        for (Class<? extends Activity> kind : kinds) {
            Activity screen = Robolectric.buildActivity(kind).setup().get();
            View all = screen.getWindow().getDecorView();
            int least = Math.round(48 * screen.getResources().getDisplayMetrics().density);
            for (View each : touchable(all, new ArrayList<>())) {
                assertTrue(kind.getSimpleName() + ": " + each + " is " + each.getHeight(), each.getHeight() >= least);
                boolean isPicture = each instanceof ImageView;
                assertTrue(kind.getSimpleName() + ": " + each, !isPicture || each.getContentDescription() != null);
            }
        }
    }

    private static List<View> touchable(View view, List<View> found) {
        boolean isForReading = view instanceof TextView && ((TextView) view).isTextSelectable();
        if (view.isClickable() && view.isShown() && view.getHeight() > 0 && !isForReading) {
            found.add(view);
        }
        if (view instanceof ViewGroup) {
            for (int i = 0; i < ((ViewGroup) view).getChildCount(); i++) {
                touchable(((ViewGroup) view).getChildAt(i), found);
            }
        }
        return found;
    }

    @Test
    public void whatTheAppDoesIsSaidOnThreePages() throws IOException {
        Activity welcome = Robolectric.buildActivity(WelcomeActivity.class).setup().get();
        assertFalse("nobody agrees to what was not shown", isShown(welcome, R.id.agree));
        assertFalse("the first page leads to where one came from", goBack(welcome));
        draw(welcome, "welcome");
        welcome.findViewById(R.id.welcome_next).performClick();
        assertEquals(welcome.getString(R.string.welcome_leaves_title), text(welcome, R.id.title));
        draw(welcome, "welcome-leaves");
        welcome.findViewById(R.id.welcome_next).performClick();
        assertEquals("Page 3 of 3", text(welcome, R.id.welcome_page));
        assertTrue(isShown(welcome, R.id.agree) && !isShown(welcome, R.id.welcome_next));
        assertTrue(goBack(welcome));
        assertEquals("Page 2 of 3", text(welcome, R.id.welcome_page));
        phone().choices.agree(true, false);
        Activity again = Robolectric.buildActivity(WelcomeActivity.class).setup().get();
        assertTrue("who has read it comes to the choice", isShown(again, R.id.agree));
    }

    private static void turnToChoice(Activity welcome) {
        while (isShown(welcome, R.id.welcome_next)) {
            welcome.findViewById(R.id.welcome_next).performClick();
        }
    }

    @Test
    public void aScreenThatIsTurnedStaysOnItsPage() {
        ActivityController<WelcomeActivity> controller = Robolectric.buildActivity(WelcomeActivity.class).setup();
        controller.get().findViewById(R.id.welcome_next).performClick();
        controller.recreate();
        assertEquals("Page 2 of 3", text(controller.get(), R.id.welcome_page));
    }

    @Test
    public void nothingTrainsThatMayNotBeRecognised() throws IOException {
        Activity welcome = Robolectric.buildActivity(WelcomeActivity.class).setup().get();
        CheckBox recognises = welcome.findViewById(R.id.recognises);
        CheckBox trains = welcome.findViewById(R.id.trains);
        assertFalse("no agreement is given beforehand", recognises.isChecked() || trains.isChecked());
        assertFalse(welcome.findViewById(R.id.agree).isEnabled());
        recognises.performClick();
        trains.performClick();
        assertTrue(trains.isChecked());
        turnToChoice(welcome);
        draw(welcome, "welcome-choice");
        recognises.performClick();
        assertFalse(trains.isChecked() || trains.isEnabled());
        recognises.performClick();
        welcome.findViewById(R.id.agree).performClick();
        await("it goes on", welcome::isFinishing);
        assertTrue(phone().choices.recognises());
        assertFalse("training was not agreed to", phone().choices.trains());
    }

    @Test
    public void onlyTheOwnerAgreesToTraining() {
        lock();
        for (boolean trains : new boolean[] {false, true}) {
            Activity welcome = Robolectric.buildActivity(WelcomeActivity.class).setup().get();
            if (!trains) {
                welcome.findViewById(R.id.recognises).performClick();
                welcome.findViewById(R.id.agree).performClick();
                await("recognising asks for no lock", welcome::isFinishing);
                continue;
            }
            welcome.findViewById(R.id.trains).performClick();
            welcome.findViewById(R.id.agree).performClick();
            Intent asked = Shadows.shadowOf(welcome).getNextStartedActivityForResult().intent;
            assertFalse("not before the answer", phone().choices.trains());
            Shadows.shadowOf(welcome).receiveResult(asked, Activity.RESULT_CANCELED, null);
            assertFalse(welcome.isFinishing() || phone().choices.trains());
            welcome.findViewById(R.id.agree).performClick();
            asked = Shadows.shadowOf(welcome).getNextStartedActivityForResult().intent;
            Shadows.shadowOf(welcome).receiveResult(asked, Activity.RESULT_OK, null);
            await("it is agreed to", welcome::isFinishing);
            assertTrue(phone().choices.trains());
        }
    }

    @Test
    public void nobodyElseGivesTheOwnersAgreement() {
        phone().choices.agree(true, false);
        int ada = Inside.gallery(device()).enrol("Ada", new byte[3][112 * 112 * 3], new float[] {1, 0}, "model", 1, true);
        settle();
        Activity welcome = Robolectric.buildActivity(WelcomeActivity.class).setup().get();
        assertFalse("the owner's no is kept", ((CheckBox) welcome.findViewById(R.id.trains)).isChecked());
        welcome.findViewById(R.id.agree).performClick();
        await("it goes on", welcome::isFinishing);
        assertTrue("nor does reading it again take Ada's back", Inside.gallery(device()).stillTrains(ada));
        assertFalse(phone().choices.trains());
    }

    @Test
    public void whatWasAgreedToIsTakenBack() throws IOException {
        phone().choices.agree(true, true);
        int ada = Inside.gallery(device()).enrol("Ada", new byte[3][112 * 112 * 3], new float[] {1, 0}, "model", 1, true);
        Activity welcome = Robolectric.buildActivity(WelcomeActivity.class).setup().get();
        welcome.findViewById(R.id.recognises).performClick();
        assertTrue(isShown(welcome, R.id.withdraw));
        drawWhole(welcome, "welcome-withdraw");
        welcome.findViewById(R.id.withdraw).performClick();
        String opened = Shadows.shadowOf(welcome).getNextStartedActivity().getComponent().getClassName();
        assertEquals(DeleteActivity.class.getName(), opened);
        welcome.findViewById(R.id.recognises).performClick();
        assertFalse("training is not agreed to again by itself", ((CheckBox) welcome.findViewById(R.id.trains)).isChecked());
        welcome.findViewById(R.id.agree).performClick();
        await("it is taken back for everybody", welcome::isFinishing);
        assertFalse(Inside.gallery(device()).stillTrains(ada));
        assertTrue(phone().choices.recognises());
    }

    @Test
    public void whoeverOpensThePhonesHomeOnTheMainThreadIsSeen() {
        phone().device();
        assertEquals(1, forgiven());
        beside(() -> phone().device());
        assertEquals(0, forgiven());
    }

    @Test
    public void aHomeThatCannotBeOpenedIsSaidAndEndsNoApp() {
        phone().choices.agree(true, true);
        Device other = Device.at(phone().home()).keysInFiles().open();
        Activity kept = Robolectric.buildActivity(MainActivity.class).setup().get();
        await("it is said", () -> isShown(kept, R.id.message));
        assertEquals(kept.getString(R.string.error_in_use), text(kept, R.id.message));
        other.close();
        shows(Robolectric.buildActivity(MainActivity.class).setup().get(), R.string.next_join);
    }

    @Test
    public void aScreenKeepsClearOfBarsCameraAndKeyboard() {
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        View screen = home.findViewById(R.id.screen);
        WindowInsets bars =
                new WindowInsets.Builder()
                        .setInsets(WindowInsets.Type.systemBars(), Insets.of(0, 60, 0, 40))
                        .setInsets(WindowInsets.Type.displayCutout(), Insets.of(80, 0, 0, 0))
                        .setInsets(WindowInsets.Type.ime(), Insets.of(0, 0, 0, 500))
                        .build();
        assertTrue("nothing inside keeps clear of them again", screen.dispatchApplyWindowInsets(bars).isConsumed());
        assertEquals(
                Arrays.asList(80, 60, 0, 500),
                Arrays.asList(
                        screen.getPaddingLeft(), screen.getPaddingTop(), screen.getPaddingRight(), screen.getPaddingBottom()));
    }

    @Test
    public void theCheckPasses() throws IOException {
        Activity screen = Robolectric.buildActivity(SelfTestActivity.class).setup().get();
        screen.findViewById(R.id.self_test).performClick();
        assertEquals(screen.getString(R.string.self_test_working), text(screen, R.id.message));
        draw(screen, "checking");
        await("the check ends", screen.findViewById(R.id.self_test)::isEnabled);
        String told = text(screen, R.id.result);
        assertTrue(told, told.matches("All [0-9]+ checks came out as expected, in .*"));
        draw(screen, "checked");
    }
}
