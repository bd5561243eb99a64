package mien.app.enrol;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import android.Manifest;
import android.app.Activity;
import android.app.AlertDialog;
import android.app.Application;
import android.content.Intent;
import android.graphics.Bitmap;
import android.graphics.Color;
import android.os.Looper;
import android.view.View;
import android.widget.CheckBox;
import android.widget.EditText;
import java.io.IOException;
import java.time.Duration;
import mien.app.Extras;
import mien.app.R;
import mien.app.ScreenRunner;
import mien.app.TinyModel;
import mien.app.camera.Faces;
import mien.app.camera.PictureFrameSource;
import mien.app.camera.Pictures;
import mien.app.training.TrainingActivity;
import mien.app.verify.VerifyActivity;
import mien.client.people.Gallery;
import mien.client.vision.FaceReader;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;
import org.robolectric.shadows.ShadowAlertDialog;
import org.robolectric.shadows.ShadowSystemClock;

/** Enrolling synthetic people before a camera, with the real detector, a real network and a real gallery beneath. */
public class EnrolTest extends ScreenRunner {
    private static final String ADA = "african_0030";
    /** Pictures of hers: straight, to her left, to her right, and again. */
    private static final int[] SWEEP = {1, 3, 2, 7, 4, 5};

    private static final double EVERYBODY_IS_ALIKE = -0.99;
    private static final double NOBODY_IS_ALIKE = 0.99;

    private PictureFrameSource[] camera;

    @Before
    public void prepare() throws IOException {
        camera = PictureFrameSource.install(false);
        Shadows.shadowOf((Application) RuntimeEnvironment.getApplication()).grantPermissions(Manifest.permission.CAMERA);
        TinyModel.install(phone(), EVERYBODY_IS_ALIKE);
        phone().choices.agree(true, true);
        phone().owner.came();
    }

    @After
    public void putCameraBack() {
        PictureFrameSource.uninstall();
    }

    private static ActivityController<EnrolActivity> open() {
        return Robolectric.buildActivity(EnrolActivity.class).setup();
    }

    private static void agree(Activity screen, String name, boolean trains) {
        ((EditText) screen.findViewById(R.id.enrol_name)).setText(name);
        screen.findViewById(R.id.enrol_recognises).performClick();
        if (trains) {
            screen.findViewById(R.id.enrol_trains).performClick();
        }
    }

    private void begin(Activity screen, String name, boolean trains) {
        agree(screen, name, trains);
        screen.findViewById(R.id.enrol_begin).performClick();
        await("the camera looks", () -> camera[0] != null && camera[0].listener != null);
    }

    @Test
    public void nobodyIsEnrolledWithoutTheirConsent() throws IOException {
        Activity screen = open().get();
        View begin = screen.findViewById(R.id.enrol_begin);
        CheckBox recognises = screen.findViewById(R.id.enrol_recognises);
        CheckBox trains = screen.findViewById(R.id.enrol_trains);
        assertFalse("nothing is agreed to beforehand", recognises.isChecked() || trains.isChecked());
        ((EditText) screen.findViewById(R.id.enrol_name)).setText("Ada");
        assertFalse(begin.isEnabled());
        trains.performClick();
        assertFalse("training alone is no consent", begin.isEnabled());
        recognises.performClick();
        assertTrue(begin.isEnabled());
        drawWhole(screen, "enrol-consent");
        ((EditText) screen.findViewById(R.id.enrol_name)).setText("  ");
        assertFalse("a name is needed", begin.isEnabled());
        assertNull("the camera is not touched", camera[0]);
    }

    @Test
    public void aSweepEnrolsAPersonWithAllOfItsPictures() throws Exception {
        Activity screen = open().get();
        begin(screen, "Ada", true);
        assertEquals(screen.getString(R.string.look_straight), text(screen, R.id.enrol_hint));
        for (int i = 0; i < SWEEP.length; i++) {
            assertEquals(screen.getString(R.string.enrol_progress, i, SWEEP.length), text(screen, R.id.enrol_progress));
            assertTrue("nothing is stored before the end", device().people().isEmpty());
            camera[0].look(Pictures.face(ADA, SWEEP[i]));
            if (i == 1) {
                assertEquals(screen.getString(R.string.enrol_turn_right), text(screen, R.id.enrol_hint));
                draw(screen, "enrol-look");
            }
        }
        await("it is stored", () -> isShown(screen, R.id.enrol_end));
        assertNull("the camera is let go", camera[0].listener);
        assertFalse("training is on", isShown(screen, R.id.enrol_off));
        draw(screen, "enrol-done");
        Gallery.Person ada = device().people().get(0);
        assertEquals("Ada", ada.name);
        assertTrue(ada.trains);
        assertEquals(SWEEP.length, ada.numImages());
        screen.findViewById(R.id.enrol_try).performClick();
        Intent opened = Shadows.shadowOf(screen).getNextStartedActivity();
        assertEquals(VerifyActivity.class.getName(), opened.getComponent().getClassName());
        assertEquals("whoever was enrolled is looked for", ada.id, opened.getIntExtra(Extras.PERSON, 0));
        assertTrue(screen.isFinishing());
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN)
    public void whoAgreesWhileTrainingIsOffIsToldSo() throws Exception {
        phone().choices.agree(true, false);
        Activity screen = open().get();
        begin(screen, "Ada", true);
        for (int number : SWEEP) {
            camera[0].look(Pictures.face(ADA, number));
        }
        await("it is stored", () -> isShown(screen, R.id.enrol_end));
        assertTrue("Ada's own agreement is kept", device().people().get(0).trains);
        assertFalse("the owner's no, too", phone().choices.trains());
        assertTrue(isShown(screen, R.id.enrol_off));
        draw(screen, "enrol-off-de");
        screen.findViewById(R.id.enrol_training).performClick();
        String opened = Shadows.shadowOf(screen).getNextStartedActivity().getComponent().getClassName();
        assertEquals(TrainingActivity.class.getName(), opened);
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN_NIGHT)
    public void oneHintAtATimeSaysWhatToDo() throws Exception {
        Activity screen = open().get();
        begin(screen, "Ada", false);
        Bitmap wall = Bitmap.createBitmap(480, 640, Bitmap.Config.ARGB_8888);
        wall.eraseColor(Color.GRAY);
        camera[0].look(wall);
        String nobody = "Es ist kein Gesicht zu sehen. Halten Sie das Telefon bei gutem Licht vor Ihr Gesicht.";
        assertEquals(nobody, text(screen, R.id.enrol_hint));
        draw(screen, "enrol-no-face-de-night");
        camera[0].look(Pictures.face("african_0033", 2));
        assertEquals(screen.getString(R.string.hint_turned), text(screen, R.id.enrol_hint));
        camera[0].look(Pictures.face(ADA, 3));
        String straight = screen.getString(R.string.look_straight);
        assertEquals("turned when it should be straight", straight, text(screen, R.id.enrol_hint));
        assertEquals(screen.getString(R.string.enrol_progress, 0, SWEEP.length), text(screen, R.id.enrol_progress));
    }

    @Test
    public void leavingKeepsNothingAndLosesNothing() throws Exception {
        device().enrol("Ada", new byte[][] {new byte[112 * 112 * 3]}, false);
        ActivityController<EnrolActivity> second = open();
        begin(second.get(), "Grace", false);
        camera[0].look(Pictures.face(ADA, SWEEP[0]));
        second.pause();
        assertNull("not in front, the camera is let go", camera[0].listener);
        second.resume();
        String one = second.get().getString(R.string.enrol_progress, 1, SWEEP.length);
        assertEquals(one, text(second.get(), R.id.enrol_progress));
        second.get().findViewById(R.id.enrol_cancel).performClick();
        assertTrue(second.get().isFinishing());
        second.pause().stop().destroy();
        assertEquals(1, device().people().size());
        assertFalse("nobody agreed to training", device().people().get(0).trains);
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN, fontScale = 1.6f)
    public void aNameThatIsTakenIsSaidBeforeTheCameraLooks() throws IOException {
        device().enrol("Ada", new byte[][] {new byte[112 * 112 * 3]}, false);
        Activity screen = open().get();
        agree(screen, " Ada", false);
        screen.findViewById(R.id.enrol_begin).performClick();
        await("it is said", () -> isShown(screen, R.id.message));
        assertEquals(screen.getString(R.string.error_already_exists), text(screen, R.id.message));
        assertNull(camera[0]);
        assertTrue("another name may be tried", screen.findViewById(R.id.enrol_begin).isEnabled());
        drawWhole(screen, "enrol-taken-de-large");
    }

    /** Enrols Ada, has the camera see her again as Eve, and returns the screen once it asks about that. */
    private Activity askedAboutEve() throws Exception {
        FaceReader reader = Faces.prepare(RuntimeEnvironment.getApplication(), device());
        byte[] crop = reader.look(Pictures.yuv(Pictures.face(ADA, SWEEP[0]), 0).upright(0, false)).crop();
        device().enrol("Ada", new byte[][] {crop}, false);
        Activity screen = open().get();
        begin(screen, "Eve", false);
        for (int number : SWEEP) {
            camera[0].look(Pictures.face(ADA, number));
        }
        await("it is asked", () -> ShadowAlertDialog.getLatestAlertDialog() != null);
        assertEquals("nobody is stored before the answer", 1, device().people().size());
        return screen;
    }

    @Test
    public void aFaceThatIsHereIsNamedAndForgotten() throws Exception {
        Activity screen = askedAboutEve();
        AlertDialog asks = ShadowAlertDialog.getLatestAlertDialog();
        String said = Shadows.shadowOf(asks).getMessage().toString();
        assertEquals(screen.getString(R.string.enrol_known_text, "Ada"), said);
        drawDialog(screen, asks, "enrol-known");
        asks.getButton(AlertDialog.BUTTON_NEGATIVE).performClick();
        await("it is over", screen::isFinishing);
        assertEquals(1, device().people().size());
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN)
    public void theOwnersLockEnrolsTwoWhoLookAlike() throws Exception {
        Activity screen = askedAboutEve();
        drawDialog(screen, ShadowAlertDialog.getLatestAlertDialog(), "enrol-known-de");
        lock();
        ShadowSystemClock.advanceBy(Duration.ofMinutes(2));
        ShadowAlertDialog.getLatestAlertDialog().getButton(AlertDialog.BUTTON_POSITIVE).performClick();
        Shadows.shadowOf(Looper.getMainLooper()).idle();
        Intent question = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        assertEquals("android.app.action.CONFIRM_DEVICE_CREDENTIAL", question.getAction());
        assertEquals("nor before the lock was opened", 1, device().people().size());
        Shadows.shadowOf(screen).receiveResult(question, Activity.RESULT_OK, null);
        await("it is stored", () -> isShown(screen, R.id.enrol_end));
        assertEquals("Eve", device().people().get(1).name);
    }

    @Test
    public void whoCannotOpenTheLockEnrolsNobody() throws Exception {
        Activity screen = askedAboutEve();
        lock();
        ShadowSystemClock.advanceBy(Duration.ofMinutes(2));
        ShadowAlertDialog.getLatestAlertDialog().getButton(AlertDialog.BUTTON_POSITIVE).performClick();
        Shadows.shadowOf(Looper.getMainLooper()).idle();
        Intent question = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        Shadows.shadowOf(screen).receiveResult(question, Activity.RESULT_CANCELED, null);
        assertTrue(screen.isFinishing());
        assertEquals(1, device().people().size());
    }

    @Test
    public void picturesThatAreNotAlikeEnrolNobody() throws Exception {
        TinyModel.install(phone(), NOBODY_IS_ALIKE);
        Activity screen = open().get();
        begin(screen, "Ada", false);
        for (int number : SWEEP) {
            camera[0].look(Pictures.face(ADA, number));
        }
        await("it is said", () -> isShown(screen, R.id.message));
        assertEquals(screen.getString(R.string.enrol_unlike), text(screen, R.id.message));
        assertTrue(device().people().isEmpty());
        assertEquals("the name need not be typed again", "Ada", text(screen, R.id.enrol_name));
        drawWhole(screen, "enrol-unlike");
    }
}
