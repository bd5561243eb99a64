package mien.sample;

import android.app.Activity;
import android.view.View;
import android.view.ViewGroup;
import android.widget.Button;
import android.widget.EditText;
import android.widget.TextView;
import mien.app.ScreenRunner;
import org.junit.Test;
import org.robolectric.Robolectric;

/** The sample's screen over a home of its own: what it says, and that errors are said and end nothing. */
public class SampleTest extends ScreenRunner {
    private static ViewGroup all(Activity screen) {
        return (ViewGroup) ((ViewGroup) screen.findViewById(android.R.id.content)).getChildAt(0);
    }

    private static void says(ViewGroup all, String text) {
        TextView told = (TextView) all.getChildAt(all.getChildCount() - 1);
        await(text, () -> told.getText().toString().contains(text));
    }

    private static void press(ViewGroup all, String text) {
        for (int i = 0; i < all.getChildCount(); i++) {
            View each = all.getChildAt(i);
            if (each instanceof Button && ((Button) each).getText().toString().equals(text)) {
                each.performClick();
                return;
            }
        }
        throw new AssertionError("no button " + text);
    }

    @Test
    public void itSaysWhatIsWrongAndGoesOn() {
        ViewGroup all = all(Robolectric.buildActivity(SampleActivity.class).setup().get());
        says(all, "paste an invite");
        ((EditText) all.getChildAt(0)).setText("no invite");
        press(all, "Join");
        says(all, "invite");
        press(all, "Stop"); // nothing to stop
        press(all, "Take part");
        says(all, "join");
    }
}
