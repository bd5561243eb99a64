package mien.app.verify;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import android.Manifest;
import android.app.Activity;
import android.app.Application;
import android.app.KeyguardManager;
import android.content.Intent;
import android.graphics.Bitmap;
import android.os.Looper;
import android.view.WindowManager;
import java.io.IOException;
import java.time.Duration;
import mien.app.Extras;
import mien.app.R;
import mien.app.ScreenRunner;
import mien.app.TinyModel;
import mien.app.camera.Faces;
import mien.app.camera.PictureFrameSource;
import mien.app.camera.Pictures;
import mien.client.Inside;
import mien.client.enrol.Lockout;
import mien.client.vision.FaceReader;
import mien.client.vision.Look;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;

/** Recognising synthetic people, with the real detector, a real network, a real gallery and a real lockout beneath. */
public class VerifyTest extends ScreenRunner {
    private static final String ADA = "african_0030";
    /** Pictures of hers in like light: cosines of 0.82 and more. */
    private static final int[] ENROLLED = {1, 2, 5};
    /** Somebody else, whose picture has cosines of 0.37 and less to them. */
    private static final String STRANGER = "asian_0034";

    private PictureFrameSource[] camera;
    private byte[][] crops;
    private int ada;

    @Before
    public void enrolAda() throws IOException {
        camera = PictureFrameSource.install(false);
        Shadows.shadowOf((Application) RuntimeEnvironment.getApplication()).grantPermissions(Manifest.permission.CAMERA);
        TinyModel.install(phone(), 0.65);
        FaceReader reader = Faces.prepare(RuntimeEnvironment.getApplication(), device());
        crops = new byte[ENROLLED.length][];
        for (int i = 0; i < crops.length; i++) {
            Look look = reader.look(Pictures.yuv(Pictures.face(ADA, ENROLLED[i]), 0).upright(0, false));
            crops[i] = look.crop();
        }
        ada = device().enrol("Ada", crops, false);
    }

    @After
    public void putCameraBack() {
        PictureFrameSource.uninstall();
    }

    private ActivityController<VerifyActivity> open(int person) {
        Intent intent = new Intent().putExtra(Extras.PERSON, person);
        ActivityController<VerifyActivity> controller = Robolectric.buildActivity(VerifyActivity.class, intent).setup();
        await("the camera looks", () -> camera[0].listener != null || isShown(controller.get(), R.id.verify_answer));
        return controller;
    }

    private void look(String person, int number) throws InterruptedException {
        camera[0].look(Pictures.face(person, number));
    }

    @Test
    public void aPersonIsRecognisedByName() throws Exception {
        VerifyActivity screen = open(0).get();
        assertEquals(screen.getString(R.string.look_straight), text(screen, R.id.verify_hint));
        Bitmap seen = Pictures.face(ADA, 1);
        camera[0].show(Pictures.yuv(seen, 270), 270, seen);
        draw(screen, "verify-look");
        look(ADA, 1);
        assertEquals(screen.getString(R.string.verify_yes), text(screen, R.id.verify_answer_title));
        assertEquals(screen.getString(R.string.verify_this_is, "Ada"), text(screen, R.id.verify_answer_text));
        assertNull("the camera is let go", camera[0].listener);
        assertFalse("nothing is left to open", isShown(screen, R.id.verify_pin));
        draw(screen, "verify-yes");
        screen.findViewById(R.id.verify_next).performClick();
        assertTrue(screen.isFinishing());
        assertEquals(Activity.RESULT_OK, Shadows.shadowOf(screen).getResultCode());
        int flags = screen.getWindow().getAttributes().flags;
        assertNotEquals(0, flags & WindowManager.LayoutParams.FLAG_SECURE);
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN_NIGHT)
    public void aStrangerIsNobodyAndMayTryAgain() throws Exception {
        VerifyActivity screen = open(0).get();
        look(STRANGER, 1);
        assertEquals("Nein", text(screen, R.id.verify_answer_title));
        assertEquals(screen.getString(R.string.verify_nobody), text(screen, R.id.verify_answer_text));
        assertEquals(Activity.RESULT_CANCELED, Shadows.shadowOf(screen).getResultCode());
        assertTrue("the way out is there", isShown(screen, R.id.verify_pin));
        draw(screen, "verify-no-de-night");
        screen.findViewById(R.id.verify_next).performClick();
        await("the camera looks again", () -> camera[0].listener != null);
        look(ADA, 1);
        assertEquals("Ja", text(screen, R.id.verify_answer_title));
    }

    @Test
    public void whoLooksLikeTwoIsSaidToBeEither() throws Exception {
        device().enrol("Eve", crops, false, true);
        VerifyActivity screen = open(0).get();
        look(ADA, 1);
        assertEquals(screen.getString(R.string.verify_yes), text(screen, R.id.verify_answer_title));
        assertEquals(screen.getString(R.string.verify_tie, "Ada", "Eve"), text(screen, R.id.verify_answer_text));
        draw(screen, "verify-tie");
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN, fontScale = 1.6f)
    public void amongTooManyItIsSaidThatAStrangerMayBeNamed() throws Exception {
        String modelId = Inside.gallery(device()).modelId();
        for (int i = 0; i < 10; i++) { // eleven, at a rate of 0.001 each: more than 1 in 100
            Inside.gallery(device()).enrol("Person " + i, crops, new float[8], modelId, 1, false);
        }
        VerifyActivity screen = open(0).get();
        look(ADA, 1);
        String named = screen.getString(R.string.verify_this_is, "Ada") + "\n" + screen.getString(R.string.verify_too_many);
        assertEquals(named, text(screen, R.id.verify_answer_text));
        draw(screen, "verify-too-many-de-large");
    }

    @Test
    public void whoClaimsToBeSomebodyIsComparedWithThemAlone() throws Exception {
        VerifyActivity screen = open(ada).get();
        look(STRANGER, 1);
        assertEquals(screen.getString(R.string.verify_not_them), text(screen, R.id.verify_answer_text));
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN, fontScale = 1.6f)
    public void afterTooManyRefusalsSecondsAreCountedDown() throws Exception {
        VerifyActivity screen = open(0).get();
        for (int i = 0; i <= Lockout.FREE_FAILURES; i++) {
            await("the camera looks", () -> camera[0].listener != null);
            look(STRANGER, 1);
            assertEquals("Nein", text(screen, R.id.verify_answer_title));
            screen.findViewById(R.id.verify_next).performClick();
        }
        String locked = screen.getString(R.string.verify_locked);
        await("it is locked", () -> text(screen, R.id.verify_answer_title).equals(locked));
        String first = text(screen, R.id.verify_answer_text);
        assertTrue(first, first.contains("0:3") || first.contains("0:2"));
        assertNull("nothing is looked at", camera[0].listener);
        assertFalse("no button asks for another try", isShown(screen, R.id.verify_next));
        draw(screen, "verify-locked-de-large");
        Shadows.shadowOf(Looper.getMainLooper()).idleFor(Duration.ofSeconds(2));
        assertNotEquals("the seconds pass", first, text(screen, R.id.verify_answer_text));
        assertTrue(lockout().waitMs() > 0);

        ActivityController<VerifyActivity> another = open(0);
        assertEquals("leaving and coming back wins nothing", locked, text(another.get(), R.id.verify_answer_title));
        another.pause().stop().destroy();

        lockout().clear(); // half a minute later
        Shadows.shadowOf(Looper.getMainLooper()).idleFor(Duration.ofMillis(Lockout.FIRST_WAIT_MS));
        await("the camera looks again", () -> isShown(screen, R.id.camera_place));
    }

    @Test
    public void thePhonesOwnLockIsTheWayOut() throws Exception {
        KeyguardManager lock = RuntimeEnvironment.getApplication().getSystemService(KeyguardManager.class);
        Shadows.shadowOf(lock).setIsDeviceSecure(true);
        VerifyActivity screen = open(0).get();
        screen.findViewById(R.id.verify_pin).performClick();
        Intent question = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        assertEquals("android.app.action.CONFIRM_DEVICE_CREDENTIAL", question.getAction());
        Shadows.shadowOf(screen).receiveResult(question, Activity.RESULT_CANCELED, null);
        assertTrue("it may be left again", camera[0].listener != null);
        screen.findViewById(R.id.verify_pin).performClick();
        question = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        Shadows.shadowOf(screen).receiveResult(question, Activity.RESULT_OK, null);
        String told = screen.getString(R.string.verify_by_pin);
        await("it is told", () -> text(screen, R.id.verify_answer_text).equals(told));
        assertEquals(Activity.RESULT_OK, Shadows.shadowOf(screen).getResultCode());
        assertEquals(0, lockout().failures());
        assertFalse("no face was looked at", isShown(screen, R.id.verify_liveness));
        draw(screen, "verify-by-lock");
    }

    @Test
    public void aPhoneWithoutALockSaysHowToGetOne() throws IOException {
        VerifyActivity screen = open(0).get();
        screen.findViewById(R.id.verify_pin).performClick();
        assertEquals(screen.getString(R.string.verify_no_lock), text(screen, R.id.message));
        draw(screen, "verify-no-lock");
    }

    @Test
    public void withoutAModelItIsTriedAgainWhenTheOwnerSays() throws Exception {
        device().wipe();
        join();
        VerifyActivity screen = Robolectric.buildActivity(VerifyActivity.class).setup().get();
        await("it is told", () -> isShown(screen, R.id.message));
        assertNull("the camera is not touched", camera[0].listener);
        TinyModel.install(phone(), 0.65);
        screen.findViewById(R.id.verify_next).performClick();
        await("the camera looks", () -> camera[0].listener != null);
        assertFalse(isShown(screen, R.id.message));
    }

    @Test
    public void nobodyEnrolledIsSaid() throws Exception {
        device().remove(ada);
        VerifyActivity screen = open(0).get();
        look(ADA, 1);
        assertEquals(screen.getString(R.string.error_not_enrolled), text(screen, R.id.message));
        assertEquals("nothing was compared, nothing counts", 0, lockout().failures());
    }
}
