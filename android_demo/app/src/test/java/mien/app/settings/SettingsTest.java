package mien.app.settings;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.app.AlertDialog;
import android.view.View;
import android.view.ViewGroup;
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
    public void theFewestPhonesInASumAreChosen() throws IOException {
        Activity screen = opened();
        assertEquals("16 Telefone", part(screen, R.id.settings_privacy, 1, R.id.row_text));
        ((ViewGroup) screen.findViewById(R.id.settings_privacy)).getChildAt(1).performClick();
        AlertDialog choice = ShadowAlertDialog.getLatestAlertDialog();
        assertEquals(2, choice.getListView().getCheckedItemPosition());
        Shadows.shadowOf(choice).clickOnItem(4);
        assertEquals(64, phone().choices.fewest());
        assertEquals("64 Telefone", part(screen, R.id.settings_privacy, 1, R.id.row_text));
        drawWhole(screen, "settings-de-night");
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

    private static String part(Activity screen, int column, int row, int id) {
        View shown = ((ViewGroup) screen.findViewById(column)).getChildAt(row);
        return ((TextView) shown.findViewById(id)).getText().toString();
    }
}
