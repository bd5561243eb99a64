package mien.app.settings;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.app.AlertDialog;
import android.content.Intent;
import android.view.View;
import android.view.ViewGroup;
import android.widget.RadioButton;
import android.widget.TextView;
import java.io.IOException;
import java.security.GeneralSecurityException;
import mien.app.R;
import mien.app.ScreenRunner;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;
import org.robolectric.shadows.ShadowAlertDialog;

/** Settings: the fleet, the model, what was agreed to, licences. */
public class SettingsTest extends ScreenRunner {
    @Test
    public void aPhoneThatJoinedSaysWhereItBelongs() throws IOException, GeneralSecurityException {
        join();
        phone().choices.agree(true, true);
        Activity screen = opened();
        assertEquals("demo", part(screen, R.id.settings_fleet, 0, R.id.row_text));
        assertEquals("localhost:9", part(screen, R.id.settings_fleet, 1, R.id.row_text));
        assertEquals(screen.getString(R.string.model_none), part(screen, R.id.settings_model, 0, R.id.row_title));
        assertEquals(screen.getString(R.string.agreed_both), part(screen, R.id.settings_privacy, 0, R.id.row_text));
        drawWhole(screen, "settings");
    }

    @Test
    @Config(qualifiers = GERMAN_NIGHT)
    public void theFewestPhonesInASumAreShown() throws IOException {
        phone().choices.demand(64);
        Activity screen = opened();
        assertEquals("64 Telefone", part(screen, R.id.settings_privacy, 1, R.id.row_text));
        ((ViewGroup) screen.findViewById(R.id.settings_privacy)).getChildAt(1).performClick();
        String next = Shadows.shadowOf(screen).getNextStartedActivity().getComponent().getClassName();
        assertEquals(FewestActivity.class.getName(), next);
        drawWhole(screen, "settings-de-night");
    }

    @Test
    public void fewerPhonesAreTakenOnceItIsSaidWhatTheyCost() throws IOException {
        Activity screen = Robolectric.buildActivity(FewestActivity.class).setup().get();
        draw(screen, "fewest");
        assertTrue(choice(screen, 16).isChecked());
        choice(screen, 4).performClick();
        AlertDialog asks = ShadowAlertDialog.getLatestAlertDialog();
        drawDialog(asks, "fewest-lower");
        assertEquals("nothing is lowered before the answer", 16, phone().choices.fewest());
        asks.getButton(AlertDialog.BUTTON_NEGATIVE).performClick();
        await("it stays", () -> choice(screen, 16).isChecked());
        assertFalse(choice(screen, 4).isChecked());
        choice(screen, 8).performClick();
        ShadowAlertDialog.getLatestAlertDialog().getButton(AlertDialog.BUTTON_POSITIVE).performClick();
        await("it is lowered", () -> phone().choices.fewest() == 8);
    }

    @Test
    @Config(qualifiers = GERMAN)
    public void morePhonesAreTakenAtOnce() throws IOException {
        Activity screen = Robolectric.buildActivity(FewestActivity.class).setup().get();
        choice(screen, 64).performClick();
        assertNull(ShadowAlertDialog.getLatestAlertDialog());
        assertEquals(64, phone().choices.fewest());
        assertTrue(choice(screen, 64).isChecked());
        draw(screen, "fewest-de");
    }

    @Test
    public void onlyTheOwnerChoosesThem() {
        lock();
        Activity screen = Robolectric.buildActivity(FewestActivity.class).setup().get();
        assertNull(screen.findViewById(R.id.fewest));
        Intent asked = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        Shadows.shadowOf(screen).receiveResult(asked, Activity.RESULT_CANCELED, null);
        assertTrue(screen.isFinishing());
    }

    @Test
    public void everyLibraryHasALicence() throws IOException {
        Activity screen = Robolectric.buildActivity(LicencesActivity.class).setup().get();
        ViewGroup licences = screen.findViewById(R.id.licences);
        assertTrue(licences.getChildCount() >= 8);
        assertEquals("ONNX Runtime", part(screen, R.id.licences, 0, R.id.row_title));
        drawWhole(screen, "licences");
    }

    private static Activity opened() {
        Activity screen = Robolectric.buildActivity(SettingsActivity.class).setup().get();
        await("the model is shown", () -> ((ViewGroup) screen.findViewById(R.id.settings_model)).getChildCount() > 0);
        return screen;
    }

    private static RadioButton choice(Activity screen, int fewest) {
        ViewGroup choices = screen.findViewById(R.id.fewest);
        for (int i = 0; i < choices.getChildCount(); i++) {
            RadioButton each = (RadioButton) choices.getChildAt(i);
            if (each.getText().toString().startsWith(fewest + " ")) {
                return each;
            }
        }
        throw new AssertionError("no choice of " + fewest);
    }

    private static String part(Activity screen, int column, int row, int id) {
        View shown = ((ViewGroup) screen.findViewById(column)).getChildAt(row);
        return ((TextView) shown.findViewById(id)).getText().toString();
    }
}
