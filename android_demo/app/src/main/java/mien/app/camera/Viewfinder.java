package mien.app.camera;

import android.Manifest;
import android.app.Activity;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.net.Uri;
import android.provider.Settings;
import android.view.Gravity;
import android.view.View;
import android.view.ViewGroup;
import android.view.WindowManager;
import android.widget.Button;
import android.widget.FrameLayout;
import android.widget.TextView;
import mien.app.R;
import mien.client.vision.Yuv;

/**
 * The camera's part of a screen that has {@code layout/camera_place}: it asks for permission, says in words why there is
 * no picture and what to do, and lets go of the camera whenever the screen is not in front. The screen passes on
 * {@code onResume}, {@code onPause} and {@code onRequestPermissionsResult}.
 */
public final class Viewfinder {
    private static final int ASKED = 2911;

    /** Who looks at the pictures. */
    public interface Looker {
        /** Told on a thread of the camera's, as {@link FrameSource.Listener#onFrame}. */
        void onFrame(Yuv picture, int rotationDeg);

        /** Told on the main thread whenever pictures begin or cease to come, so that the last one's hints vanish. */
        void onLooking(boolean isLooking, boolean hasTorch);
    }

    private final Activity screen;
    private final FrameSource source;
    private final int why;
    private final Looker looker;
    private final View notice;
    private boolean isWanted;
    private boolean isInFront;
    private boolean wasRefused;

    /** {@code why} is the sentence that is shown before Android asks for the permission. */
    public Viewfinder(Activity screen, FrameSource source, Guide guide, int why, Looker looker) {
        this.screen = screen;
        this.source = source;
        this.why = why;
        this.looker = looker;
        notice = screen.findViewById(R.id.camera_notice);
        source.preview().addView(guide);
        FrameLayout.LayoutParams middle =
                new FrameLayout.LayoutParams(
                        ViewGroup.LayoutParams.MATCH_PARENT, ViewGroup.LayoutParams.MATCH_PARENT, Gravity.CENTER);
        ((ViewGroup) screen.findViewById(R.id.camera_place)).addView(source.preview(), 0, middle);
    }

    /** Begins to look, as soon as the screen is in front and allowed to. */
    public void begin() {
        isWanted = true;
        screen.getWindow().addFlags(WindowManager.LayoutParams.FLAG_KEEP_SCREEN_ON);
        lookIfPossible();
    }

    /** Lets go of the camera, until {@link #begin}. */
    public void end() {
        isWanted = false;
        screen.getWindow().clearFlags(WindowManager.LayoutParams.FLAG_KEEP_SCREEN_ON);
        stop();
    }

    public void setTorch(boolean isOn) {
        source.setTorch(isOn);
    }

    public void onResume() {
        isInFront = true;
        lookIfPossible();
    }

    public void onPause() {
        isInFront = false;
        stop();
    }

    public void onPermission(int request, int[] results) {
        if (request != ASKED) {
            return;
        }
        // No results: the question was taken away before it was answered, so it may be asked again.
        if (results.length > 0 && results[0] != PackageManager.PERMISSION_GRANTED) {
            wasRefused = !screen.shouldShowRequestPermissionRationale(Manifest.permission.CAMERA);
        }
        lookIfPossible();
    }

    private void stop() {
        source.stop();
        looker.onLooking(false, false);
    }

    private void lookIfPossible() {
        if (!isWanted || !isInFront) {
            return;
        }
        if (screen.checkSelfPermission(Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
            wasRefused = false;
            notice.setVisibility(View.GONE);
            source.preview().setVisibility(View.VISIBLE);
            source.start(new Pictures());
        } else if (wasRefused) {
            sayRefused();
        } else {
            say(R.string.camera_ask_title, why, R.string.camera_ask_button, this::ask);
        }
    }

    private void ask() {
        screen.requestPermissions(new String[] {Manifest.permission.CAMERA}, ASKED);
    }

    private void sayRefused() {
        say(R.string.camera_refused_title, R.string.camera_refused, R.string.camera_settings, this::openSettings);
    }

    private void openSettings() {
        Uri app = Uri.fromParts("package", screen.getPackageName(), null);
        screen.startActivity(new Intent(Settings.ACTION_APPLICATION_DETAILS_SETTINGS, app));
    }

    private void say(FrameSource.Trouble trouble) {
        switch (trouble) {
            case NO_CAMERA:
                say(R.string.camera_none_title, R.string.camera_none);
                break;
            case FORBIDDEN:
                say(R.string.camera_forbidden_title, R.string.camera_forbidden);
                break;
            case IN_USE:
                say(R.string.camera_in_use_title, R.string.camera_in_use);
                break;
            case NOT_ALLOWED:
                sayRefused();
                break;
            default:
                say(R.string.camera_broken_title, R.string.camera_broken);
        }
    }

    private void say(int title, int text) {
        say(title, text, R.string.camera_again, this::lookIfPossible);
    }

    private void say(int title, int text, int button, Runnable action) {
        looker.onLooking(false, false);
        source.preview().setVisibility(View.INVISIBLE);
        ((TextView) notice.findViewById(R.id.camera_notice_title)).setText(title);
        ((TextView) notice.findViewById(R.id.camera_notice_text)).setText(text);
        Button act = notice.findViewById(R.id.camera_notice_button);
        act.setText(button);
        act.setOnClickListener(view -> action.run());
        notice.setVisibility(View.VISIBLE);
    }

    private final class Pictures implements FrameSource.Listener {
        @Override
        public void onOpened(boolean hasTorch) {
            looker.onLooking(true, hasTorch);
        }

        @Override
        public void onFrame(Yuv picture, int rotationDeg) {
            looker.onFrame(picture, rotationDeg);
        }

        @Override
        public void onTrouble(FrameSource.Trouble trouble) {
            say(trouble);
        }
    }
}
