package mien.app.settings;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import android.app.Activity;
import java.io.IOException;
import mien.app.R;
import mien.app.ScreenRunner;
import org.junit.Test;
import org.junit.runner.JUnitCore;
import org.junit.runner.Result;
import org.robolectric.Robolectric;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;

/** What a phone says that does not compute as it should; that the check passes here is in {@code ScreensTest}. */
public class SelfTestTest extends ScreenRunner {
    /** Two checks as a broken phone runs them. */
    public static final class Broken {
        @Test
        public void sumsAreTheirs() {
            assertEquals("0102", "0103");
        }

        @Test
        public void masksCancel() {
            fail("expected 00ff, got 00fe");
        }
    }

    @Test
    public void aCheckGoesOnWhileTheScreenIsTurned() {
        ActivityController<SelfTestActivity> held = Robolectric.buildActivity(SelfTestActivity.class).setup();
        Runnable go = hold();
        held.get().findViewById(R.id.self_test).performClick();
        Activity turned = held.recreate().get();
        assertFalse("it is not begun twice", turned.findViewById(R.id.self_test).isEnabled());
        assertTrue(isShown(turned, R.id.self_test_progress));
        go.run();
        await("it has answered", () -> isShown(turned, R.id.self_test_answer));
    }

    @Test
    @Config(qualifiers = GERMAN)
    public void aFailedCheckSaysWhatToDoAndNamesWhatFailed() throws IOException {
        Result broken = JUnitCore.runClasses(Broken.class);
        SelfTestActivity screen = Robolectric.buildActivity(SelfTestActivity.class).setup().get();
        screen.show(broken);
        assertEquals(screen.getString(R.string.self_test_failed_title), text(screen, R.id.self_test_title));
        String failures = text(screen, R.id.self_test_failures);
        assertTrue(failures, failures.startsWith("2 von 2 ") && failures.contains("masksCancel"));
        assertTrue("it can be repeated", screen.findViewById(R.id.self_test).isEnabled());
        drawWhole(screen, "check-failed-de");
    }
}
