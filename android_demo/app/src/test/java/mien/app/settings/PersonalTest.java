package mien.app.settings;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import java.io.IOException;
import java.security.GeneralSecurityException;
import mien.app.R;
import mien.app.ScreenRunner;
import mien.app.TinyModel;
import mien.app.people.PeopleActivity;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;

/** Fitting the model to the people of this phone: by a real network, real public faces of nobody, a real gallery. */
public class PersonalTest extends ScreenRunner {
    private static final int PUBLIC = 24;
    private static final int ADA = 500;

    @Test
    public void whatIsBetterIsUsedUntilItsOwnerGoesBack() throws IOException, GeneralSecurityException {
        joinWith(PUBLIC);
        enrol(true);
        Activity screen = opened(R.string.personal_not_used);
        draw(screen, "personal");
        screen.findViewById(R.id.personal_do).performClick();
        assertTrue(isShown(screen, R.id.personal_progress));
        assertFalse("it is not begun twice", isShown(screen, R.id.personal_do));
        draw(screen, "personal-working");
        shows(screen, R.string.personal_used);
        assertTrue(device().recogniser().isPersonal());
        draw(screen, "personal-used");
        screen.findViewById(R.id.personal_forget).performClick();
        shows(screen, R.string.personal_not_used);
        assertFalse(device().recogniser().isPersonal() || isShown(screen, R.id.personal_forget));
    }

    @Test
    public void aFitGoesOnWhileTheScreenIsTurned() throws IOException, GeneralSecurityException {
        joinWith(PUBLIC);
        enrol(true);
        ActivityController<PersonalActivity> held = Robolectric.buildActivity(PersonalActivity.class).setup();
        shows(held.get(), R.string.personal_not_used);
        Runnable go = hold();
        held.get().findViewById(R.id.personal_do).performClick();
        Activity turned = held.recreate().get();
        assertEquals(turned.getString(R.string.personal_working), text(turned, R.id.personal_state));
        assertFalse("it is not begun twice", isShown(turned, R.id.personal_do));
        go.run();
        shows(turned, R.string.personal_used);
    }

    @Test
    @Config(qualifiers = GERMAN_NIGHT)
    public void whatCannotBeJudgedIsNotUsed() throws IOException, GeneralSecurityException {
        joinWith(3);
        enrol(true);
        Activity screen = opened(R.string.personal_not_used);
        screen.findViewById(R.id.personal_do).performClick();
        await("that is said", () -> isShown(screen, R.id.message) && isShown(screen, R.id.personal_do));
        assertEquals(screen.getString(R.string.personal_impossible), text(screen, R.id.message));
        draw(screen, "personal-impossible-de-night");
    }

    @Test
    public void nobodyIsFittedToWhoHasNotAgreed() throws IOException, GeneralSecurityException {
        joinWith(PUBLIC);
        enrol(false);
        Activity screen = opened(R.string.personal_nobody);
        assertFalse(isShown(screen, R.id.personal_do));
        screen.findViewById(R.id.personal_people).performClick();
        String opened = Shadows.shadowOf(screen).getNextStartedActivity().getComponent().getClassName();
        assertEquals(PeopleActivity.class.getName(), opened);
        draw(screen, "personal-nobody");
    }

    private static void joinWith(int people) throws IOException, GeneralSecurityException {
        join();
        phone().choices.agree(true, true);
        TinyModel.installWithPublic(phone(), 0.65, people);
    }

    private static void enrol(boolean agrees) {
        byte[][] crops = new byte[6][];
        for (int i = 0; i < crops.length; i++) {
            crops[i] = TinyModel.crop(ADA, i);
        }
        device().enrol("Ada", crops, agrees);
    }

    private static Activity opened(int state) {
        Activity screen = Robolectric.buildActivity(PersonalActivity.class).setup().get();
        shows(screen, state);
        return screen;
    }

    private static void shows(Activity screen, int state) {
        await(screen.getString(state), () -> text(screen, R.id.personal_state).equals(screen.getString(state)));
    }
}
