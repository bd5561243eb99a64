package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.widget.CheckBox;
import java.io.IOException;
import mien.app.join.JoinActivity;
import mien.app.settings.SelfTestActivity;
import mien.app.welcome.WelcomeActivity;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;

/** Home, the first run and the self-test. */
public class ScreensTest extends ScreenRunner {
    @Test
    public void homeLeadsOnStepByStep() throws IOException {
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        assertEquals(home.getString(R.string.next_welcome), text(home, R.id.next_title));
        home.findViewById(R.id.next).performClick();
        String opened = Shadows.shadowOf(home).getNextStartedActivity().getComponent().getClassName();
        assertEquals(WelcomeActivity.class.getName(), opened);
        draw(home, "home-first");

        phone().choices.agree(true, false);
        home = Robolectric.buildActivity(MainActivity.class).setup().get();
        home.findViewById(R.id.next).performClick();
        opened = Shadows.shadowOf(home).getNextStartedActivity().getComponent().getClassName();
        assertEquals(JoinActivity.class.getName(), opened);
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
        drawWhole(welcome, "welcome");
        recognises.performClick();
        assertFalse(trains.isChecked() || trains.isEnabled());
        recognises.performClick();
        welcome.findViewById(R.id.agree).performClick();
        assertTrue(welcome.isFinishing());
        assertTrue(phone().choices.recognises());
        assertFalse("training was not agreed to", phone().choices.trains());
    }

    @Test
    public void theCheckPasses() throws IOException {
        Activity screen = Robolectric.buildActivity(SelfTestActivity.class).setup().get();
        screen.findViewById(R.id.self_test).performClick();
        assertEquals(screen.getString(R.string.self_test_working), text(screen, R.id.result));
        await("the check ends", screen.findViewById(R.id.self_test)::isEnabled);
        String told = text(screen, R.id.result);
        assertTrue(told, told.matches("All [0-9]+ checks gave the expected bytes, in .*"));
        draw(screen, "checked");
    }
}
