package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.view.View;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.concurrent.CountDownLatch;
import mien.app.people.PeopleActivity;
import mien.app.settings.SettingsActivity;
import mien.app.training.TrainingActivity;
import mien.app.welcome.WelcomeActivity;
import mien.client.Inside;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.annotation.Config;

/** The same screens where letters run from right to left, across, on a tablet; and before there is anything to show. */
public class KindsOfScreensTest extends ScreenRunner {
    private static Activity home() {
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        await("home says what is next", () -> isShown(home, R.id.next));
        return home;
    }

    private static void joinAndEnrol() throws IOException, GeneralSecurityException {
        join();
        phone().choices.agree(true, true);
        Inside.gallery(device()).enrol("Ada", new byte[3][112 * 112 * 3], new float[] {1, 0}, "model", 1, true);
    }

    private static int left(View view) {
        int[] place = new int[2];
        view.getLocationInWindow(place);
        return place[0];
    }

    @Test
    @Config(qualifiers = RIGHT_TO_LEFT)
    public void fromRightToLeftTheWayBackIsOnTheRight() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        draw(home(), "home-rtl");
        Activity training = Robolectric.buildActivity(TrainingActivity.class).setup().get();
        await("the state is shown", () -> !text(training, R.id.training_state).isEmpty());
        draw(training, "training-rtl");
        assertTrue(left(training.findViewById(R.id.back)) > left(training.findViewById(R.id.title)));
    }

    @Test
    @Config(qualifiers = ACROSS)
    public void acrossTheChoiceStaysInSight() throws IOException {
        Activity welcome = Robolectric.buildActivity(WelcomeActivity.class).setup().get();
        draw(welcome, "welcome-across");
        welcome.findViewById(R.id.welcome_next).performClick();
        welcome.findViewById(R.id.welcome_next).performClick();
        draw(welcome, "welcome-choice-across");
        View agree = welcome.findViewById(R.id.agree);
        View decline = welcome.findViewById(R.id.decline);
        assertEquals("side by side", agree.getTop(), decline.getTop());
        View content = welcome.findViewById(R.id.inside);
        assertTrue("and the page is not squeezed away: " + content.getHeight(), content.getHeight() >= 200);
    }

    @Test
    @Config(qualifiers = TABLET)
    public void onATabletLinesStayShortEnough() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        Activity home = home();
        draw(home, "home-tablet");
        float density = home.getResources().getDisplayMetrics().density;
        assertTrue(home.findViewById(R.id.next_text).getWidth() <= 680 * density);
        Activity settings = Robolectric.buildActivity(SettingsActivity.class).setup().get();
        await("the fleet is shown", () -> isShown(settings, R.id.settings_fleet));
        draw(settings, "settings-tablet");
    }

    @Test
    public void whatIsNotReadYetIsSaidToBeUnderWay() throws IOException {
        CountDownLatch turns = new CountDownLatch(1);
        phone().work.run(() -> waited(turns), waited -> {}, error -> {});
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        assertEquals("nothing was read on the main thread", home.getString(R.string.home_working), text(home, R.id.next_title));
        draw(home, "home-loading");
        turns.countDown();
        await("then it is there", () -> isShown(home, R.id.next));
    }

    @Test
    @Config(qualifiers = GERMAN)
    public void nobodyIsEnrolledYet() throws IOException, GeneralSecurityException {
        join();
        phone().choices.agree(true, true);
        Activity people = Robolectric.buildActivity(PeopleActivity.class).setup().get();
        await("that is said", () -> isShown(people, R.id.nobody));
        draw(people, "people-empty-de");
    }
}
