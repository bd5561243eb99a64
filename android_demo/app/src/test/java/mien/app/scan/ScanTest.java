package mien.app.scan;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import android.Manifest;
import android.app.Activity;
import android.app.Application;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.graphics.Bitmap;
import android.provider.Settings;
import android.view.View;
import android.view.WindowManager;
import android.widget.Button;
import mien.app.Extras;
import mien.app.R;
import mien.app.ScreenRunner;
import mien.app.camera.FrameSource.Trouble;
import mien.app.camera.PictureFrameSource;
import mien.app.camera.Pictures;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;
import org.robolectric.shadows.ShadowActivity;

/** Scanning an invite, and everything that can keep a screen from the camera. */
public class ScanTest extends ScreenRunner {
    private PictureFrameSource[] camera;

    @Before
    public void installCamera() {
        camera = PictureFrameSource.install(true);
    }

    @After
    public void uninstallCamera() {
        PictureFrameSource.uninstall();
    }

    private static void allow() {
        Shadows.shadowOf((Application) RuntimeEnvironment.getApplication()).grantPermissions(Manifest.permission.CAMERA);
    }

    private static ActivityController<ScanActivity> open() {
        return Robolectric.buildActivity(ScanActivity.class).setup();
    }

    @Test
    public void theTextOfAnInviteIsTheResult() throws Exception {
        allow();
        ScanActivity screen = open().get();
        Bitmap seen = QrReaderTest.seen(QrReaderTest.code(QrReaderTest.INVITE), 8);
        camera[0].show(Pictures.yuv(seen, 90), 90, seen);
        draw(screen, "scan");
        ShadowActivity shadow = Shadows.shadowOf(screen);
        assertTrue(screen.isFinishing());
        assertEquals(Activity.RESULT_OK, shadow.getResultCode());
        assertEquals(QrReaderTest.INVITE, shadow.getResultIntent().getStringExtra(Extras.INVITE));
    }

    @Test
    public void nobodyElseSeesTheInvite() {
        allow();
        int flags = open().get().getWindow().getAttributes().flags;
        assertNotEquals(0, flags & WindowManager.LayoutParams.FLAG_SECURE);
        assertNotEquals(0, flags & WindowManager.LayoutParams.FLAG_KEEP_SCREEN_ON);
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN_NIGHT)
    public void aCodeThatIsNoInviteIsToldAndLookingGoesOn() throws Exception {
        allow();
        ScanActivity screen = open().get();
        Bitmap shop = QrReaderTest.seen(QrReaderTest.code("https://shop.example/"), 0);
        camera[0].show(Pictures.yuv(shop, 90), 90, shop);
        assertEquals(screen.getString(R.string.scan_no_invite), text(screen, R.id.scan_hint));
        draw(screen, "scan-no-invite-de-night");
        String cut = QrReaderTest.INVITE.substring(0, 120);
        Bitmap damaged = QrReaderTest.seen(QrReaderTest.code(cut), 0);
        camera[0].show(Pictures.yuv(damaged, 90), 90, damaged);
        assertEquals(screen.getString(R.string.scan_damaged), text(screen, R.id.scan_hint));
        assertFalse(screen.isFinishing());
    }

    @Test
    @Config(qualifiers = "w720dp-h360dp-land-xhdpi")
    public void acrossTheWordsLieBesideThePicture() {
        allow();
        ScanActivity screen = open().get();
        View all = screen.getWindow().getDecorView();
        all.measure(
                View.MeasureSpec.makeMeasureSpec(1440, View.MeasureSpec.EXACTLY),
                View.MeasureSpec.makeMeasureSpec(720, View.MeasureSpec.EXACTLY));
        all.layout(0, 0, 1440, 720);
        View pictures = screen.findViewById(R.id.camera_place);
        int[] place = new int[2];
        screen.findViewById(R.id.scan_hint).getLocationInWindow(place);
        assertTrue("beside", place[0] >= pictures.getRight());
        assertTrue("no part is hidden", place[1] >= 0 && pictures.getHeight() > 0);
        assertTrue(camera[0].preview().getHeight() <= pictures.getHeight());
    }

    @Test
    public void theLightGoesOnAndOff() {
        allow();
        ActivityController<ScanActivity> screen = open();
        Button torch = screen.get().findViewById(R.id.scan_torch);
        assertEquals(View.VISIBLE, torch.getVisibility());
        torch.performClick();
        assertTrue(camera[0].isTorchOn);
        torch.performClick();
        assertFalse(camera[0].isTorchOn);
        torch.performClick();
        screen.pause();
        assertNull("the camera is let go", camera[0].listener);
        screen.resume();
        assertEquals(screen.get().getString(R.string.scan_torch_on), torch.getText().toString());
    }

    @Test
    public void thereIsNoSwitchWhereThereIsNoLight() {
        camera = PictureFrameSource.install(false);
        allow();
        assertEquals(View.GONE, open().get().findViewById(R.id.scan_torch).getVisibility());
    }

    @Test
    public void thePermissionIsExplainedAskedForAndUsed() throws Exception {
        ScanActivity screen = open().get();
        assertNull("no camera without permission", camera[0].listener);
        assertEquals(screen.getString(R.string.scan_why), text(screen, R.id.camera_notice_text));
        assertFalse("no square is shown to hold a code in", isShown(screen, R.id.scan_hint));
        draw(screen, "camera-ask");
        screen.findViewById(R.id.camera_notice_button).performClick();
        String[] asked = Shadows.shadowOf(screen).getLastRequestedPermission().requestedPermissions;
        assertEquals(Manifest.permission.CAMERA, asked[0]);
        allow();
        answer(screen, PackageManager.PERMISSION_GRANTED);
        assertEquals(View.GONE, screen.findViewById(R.id.camera_notice).getVisibility());
        assertTrue(camera[0].listener != null);
        assertTrue(isShown(screen, R.id.scan_hint));
    }

    private static void answer(ScanActivity screen, int... results) {
        int request = Shadows.shadowOf(screen).getLastRequestedPermission().requestCode;
        screen.onRequestPermissionsResult(request, new String[] {Manifest.permission.CAMERA}, results);
    }

    @Test
    @Config(qualifiers = ScreenRunner.GERMAN, fontScale = 1.6f)
    public void aRefusalForGoodLeadsToTheSettingsAndBack() throws Exception {
        ActivityController<ScanActivity> controller = open();
        ScanActivity screen = controller.get();
        Button act = screen.findViewById(R.id.camera_notice_button);
        act.performClick();
        answer(screen); // the question was taken away
        assertEquals(screen.getString(R.string.camera_ask_button), act.getText().toString());
        answer(screen, PackageManager.PERMISSION_DENIED);
        assertEquals(screen.getString(R.string.camera_refused_title), text(screen, R.id.camera_notice_title));
        assertFalse(isShown(screen, R.id.scan_hint));
        draw(screen, "camera-refused-de-large");
        act.performClick();
        Intent settings = Shadows.shadowOf(screen).getNextStartedActivity();
        assertEquals(Settings.ACTION_APPLICATION_DETAILS_SETTINGS, settings.getAction());
        controller.pause();
        allow();
        controller.resume();
        assertTrue("allowed in the settings, the camera comes at once", camera[0].listener != null);
    }

    @Test
    public void anUndecidedRefusalIsExplainedAgain() {
        ScanActivity screen = open().get();
        Shadows.shadowOf(screen.getPackageManager())
                .setShouldShowRequestPermissionRationale(Manifest.permission.CAMERA, true);
        Button act = screen.findViewById(R.id.camera_notice_button);
        act.performClick();
        answer(screen, PackageManager.PERMISSION_DENIED);
        assertEquals(screen.getString(R.string.camera_ask_button), act.getText().toString());
    }

    @Test
    public void everyTroubleIsTold() throws Exception {
        allow();
        ActivityController<ScanActivity> controller = open();
        ScanActivity screen = controller.get();
        Button act = screen.findViewById(R.id.camera_notice_button);
        int[] titles = {
            R.string.camera_none_title,
            R.string.camera_forbidden_title,
            R.string.camera_refused_title,
            R.string.camera_in_use_title,
            R.string.camera_broken_title
        };
        Trouble[] troubles = Trouble.values();
        assertEquals(titles.length, troubles.length);
        for (int i = 0; i < troubles.length; i++) {
            camera[0].fail(troubles[i]);
            assertEquals(screen.getString(titles[i]), text(screen, R.id.camera_notice_title));
            assertEquals(View.INVISIBLE, camera[0].preview().getVisibility());
            assertFalse(isShown(screen, R.id.scan_hint));
            act.performClick();
            controller.pause().resume(); // the settings were opened, or the camera is tried again
            assertEquals(View.GONE, screen.findViewById(R.id.camera_notice).getVisibility());
        }
        camera[0].fail(Trouble.IN_USE);
        draw(screen, "camera-in-use");
    }
}
