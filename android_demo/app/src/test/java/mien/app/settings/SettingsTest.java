package mien.app.settings;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.app.AlertDialog;
import android.content.ComponentName;
import android.content.Intent;
import android.view.View;
import android.view.ViewGroup;
import android.widget.RadioButton;
import android.widget.TextView;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.Collections;
import mien.app.Extras;
import mien.app.Limit;
import mien.app.R;
import mien.app.ScreenRunner;
import mien.app.TinyModel;
import mien.client.tasks.Agreement;
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
        phone().choices.demand(Limit.FEWEST, 64);
        Activity screen = opened();
        assertEquals("64 Telefone", part(screen, R.id.settings_privacy, 1, R.id.row_text));
        ((ViewGroup) screen.findViewById(R.id.settings_privacy)).getChildAt(1).performClick();
        String next = Shadows.shadowOf(screen).getNextStartedActivity().getComponent().getClassName();
        assertEquals(LimitActivity.class.getName(), next);
        drawWhole(screen, "settings-de-night");
    }

    @Test
    public void fewerPhonesAreTakenOnceItIsSaidWhatTheyCost() throws IOException {
        Activity screen = Robolectric.buildActivity(LimitActivity.class).setup().get();
        draw(screen, "fewest");
        assertTrue(choice(screen, 16).isChecked());
        choice(screen, 4).performClick();
        AlertDialog asks = ShadowAlertDialog.getLatestAlertDialog();
        drawDialog(screen, asks, "fewest-lower");
        assertEquals("nothing is lowered before the answer", 16, phone().choices.of(Limit.FEWEST));
        asks.getButton(AlertDialog.BUTTON_NEGATIVE).performClick();
        await("it stays", () -> choice(screen, 16).isChecked());
        assertFalse(choice(screen, 4).isChecked());
        choice(screen, 8).performClick();
        ShadowAlertDialog.getLatestAlertDialog().getButton(AlertDialog.BUTTON_POSITIVE).performClick();
        await("it is lowered", () -> phone().choices.of(Limit.FEWEST) == 8);
    }

    @Test
    @Config(qualifiers = GERMAN)
    public void morePhonesAreTakenAtOnce() throws IOException {
        Activity screen = Robolectric.buildActivity(LimitActivity.class).setup().get();
        choice(screen, 64).performClick();
        assertNull(ShadowAlertDialog.getLatestAlertDialog());
        assertEquals(64, phone().choices.of(Limit.FEWEST));
        assertTrue(choice(screen, 64).isChecked());
        draw(screen, "fewest-de");
    }

    @Test
    public void everyLimitBeginsAsTheClientHasItAndReachesTheAgreement() {
        Agreement standard = new Agreement();
        Agreement agreed = phone().choices.agreement();
        assertEquals(standard.minCohort, agreed.minCohort);
        assertEquals("nothing is shown that nobody allowed", Collections.emptySet(), agreed.reveals);
        assertEquals(standard.minPeerAgeDays, agreed.minPeerAgeDays);
        assertEquals(standard.countsAttestedPeers, agreed.countsAttestedPeers);
        assertEquals(standard.maxEpsilon, agreed.maxEpsilon, 0);
        assertEquals(standard.maxSumsPerModel, agreed.maxSumsPerModel);
        assertEquals(standard.maxSumsPerDay, agreed.maxSumsPerDay);
        for (Limit limit : Limit.values()) {
            Activity screen = limitScreen(limit);
            assertTrue(limit + ": the default is one of the choices", ticked(screen) >= 0);
            choices(screen).getChildAt(choices(screen).getChildCount() - 1).performClick();
            assertNull(limit + ": more protection is taken at once", ShadowAlertDialog.getLatestAlertDialog());
        }
        agreed = phone().choices.agreement();
        assertEquals(64, agreed.minCohort);
        assertEquals(30, agreed.minPeerAgeDays);
        assertFalse(agreed.countsAttestedPeers);
        assertEquals(1.0, agreed.maxEpsilon, 0);
        assertEquals(1, agreed.maxSumsPerModel);
        assertEquals(1, agreed.maxSumsPerDay);
    }

    @Test
    public void lessProtectionIsAskedForFirst() throws IOException {
        for (Limit limit : Limit.values()) {
            Activity tight = limitScreen(limit);
            choices(tight).getChildAt(choices(tight).getChildCount() - 1).performClick();
            int before = phone().choices.of(limit);
            choices(tight).getChildAt(0).performClick();
            AlertDialog asks = ShadowAlertDialog.getLatestAlertDialog();
            assertEquals(limit + ": nothing changes before the answer", before, phone().choices.of(limit));
            asks.getButton(AlertDialog.BUTTON_POSITIVE).performClick();
            await(limit + " is lowered", () -> phone().choices.of(limit) != before);
            draw(tight, "limit-" + limit.key);
            ShadowAlertDialog.reset();
        }
        Agreement agreed = phone().choices.agreement();
        assertTrue(agreed.countsAttestedPeers);
        assertEquals(Collections.singleton(Agreement.CLASS_MOMENT), agreed.reveals);
        assertTrue(Double.isInfinite(agreed.maxEpsilon));
        assertEquals(0, agreed.minPeerAgeDays);
    }

    @Test
    public void aModelSaysWhomItWasMeasuredOn() throws IOException {
        String[] children = {"age", "0-12", "exceeds"};
        TinyModel.install(phone(), 0.65, children, new String[] {"age", "20-39", "measured"}, new String[] {"age", "60+", "too_small"});
        Activity screen = opened();
        assertEquals("Measured among: age 0-12, age 20-39", part(screen, R.id.settings_model, 2, R.id.row_text));
        assertEquals("Not to be relied on for: age 0-12", part(screen, R.id.settings_model, 3, R.id.row_title));
        String never = part(screen, R.id.settings_model, 4, R.id.row_text);
        assertFalse(never, never.contains(screen.getString(R.string.unmeasured_children)));
        assertTrue(never, never.contains(screen.getString(R.string.unmeasured_old)));
        drawWhole(screen, "settings-groups");
    }

    @Test
    @Config(qualifiers = GERMAN_NIGHT)
    public void aModelOfWhichNothingIsKnownByGroupsSaysSo() throws IOException {
        TinyModel.install(phone(), 0.65);
        Activity screen = opened();
        assertEquals(screen.getString(R.string.unmeasured), part(screen, R.id.settings_model, 2, R.id.row_title));
        String never = part(screen, R.id.settings_model, 2, R.id.row_text);
        assertTrue(never, never.startsWith("Kinder bis 12 Jahre; ") && never.contains("Zwillinge"));
        drawWhole(screen, "settings-groups-de-night");
    }

    @Test
    public void onlyTheOwnerChoosesThem() {
        lock();
        Activity screen = Robolectric.buildActivity(LimitActivity.class).setup().get();
        assertNull(screen.findViewById(R.id.limit));
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

    @Test
    public void lookingForTheNewestWithoutANetworkPromisesNothing() throws IOException, GeneralSecurityException {
        join();
        Activity screen = opened();
        ViewGroup model = screen.findViewById(R.id.settings_model);
        await("the newest can be looked for", () -> model.getChildCount() > 1);
        model.getChildAt(model.getChildCount() - 1).performClick();
        String said = "No answer. Check the network, then try again.";
        await("nobody answers", () -> text(screen, R.id.message).equals(said));
    }

    @Test
    public void thePhoneIsCheckedWhereTheAppHoldsTheTests() {
        Activity screen = opened();
        assertEquals(screen.getString(R.string.self_test_title), part(screen, R.id.settings_app, 0, R.id.row_title));
        ((ViewGroup) screen.findViewById(R.id.settings_app)).getChildAt(0).performClick();
        ComponentName check = Shadows.shadowOf(screen).getNextStartedActivity().getComponent();
        assertEquals(SelfTestActivity.class.getName(), check.getClassName());
        Shadows.shadowOf(screen.getPackageManager()).removeActivity(check); // as a release has it
        assertEquals(screen.getString(R.string.licences_title), part(opened(), R.id.settings_app, 0, R.id.row_title));
    }

    private static Activity opened() {
        Activity screen = Robolectric.buildActivity(SettingsActivity.class).setup().get();
        await("the model is shown", () -> ((ViewGroup) screen.findViewById(R.id.settings_model)).getChildCount() > 0);
        return screen;
    }

    private static Activity limitScreen(Limit limit) {
        Intent intent = new Intent().putExtra(Extras.LIMIT, limit.name());
        return Robolectric.buildActivity(LimitActivity.class, intent).setup().get();
    }

    private static ViewGroup choices(Activity screen) {
        return screen.findViewById(R.id.limit);
    }

    /** Returns which choice is ticked; -1 where none is. */
    private static int ticked(Activity screen) {
        for (int i = 0; i < choices(screen).getChildCount(); i++) {
            if (((RadioButton) choices(screen).getChildAt(i)).isChecked()) {
                return i;
            }
        }
        return -1;
    }

    private static RadioButton choice(Activity screen, int fewest) {
        ViewGroup choices = screen.findViewById(R.id.limit);
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
