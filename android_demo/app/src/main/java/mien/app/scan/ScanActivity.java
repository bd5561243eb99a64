package mien.app.scan;

import android.content.Intent;
import android.content.pm.ActivityInfo;
import android.os.Bundle;
import android.view.View;
import android.widget.Button;
import android.widget.TextView;
import mien.app.Extras;
import mien.app.R;
import mien.app.Screen;
import mien.app.camera.Cameras;
import mien.app.camera.FrameSource;
import mien.app.camera.Guide;
import mien.app.camera.Viewfinder;
import mien.client.MienException;
import mien.client.vision.Yuv;
import mien.client.wire.Invite;

/** Looks for the QR code of an invite; its text is the result, as {@link Extras#INVITE}. Nothing of it is kept. */
public final class ScanActivity extends Screen implements Viewfinder.Looker {
    /** Enough for the 60 modules of an invite's code, a hand's breadth away. */
    private static final int LEAST_PIXELS = 1280;

    private static final String SCHEME = "mien:";

    private final QrReader reader = new QrReader();
    private Viewfinder viewfinder;
    private TextView hint;
    private Button torch;
    private boolean isTorchOn;
    private volatile boolean isDone;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        setRequestedOrientation(ActivityInfo.SCREEN_ORIENTATION_LOCKED);
        showFilling(R.layout.scan, R.string.scan_title);
        hint = findViewById(R.id.scan_hint);
        torch = findViewById(R.id.scan_torch);
        torch.setOnClickListener(view -> light(!isTorchOn));
        FrameSource camera = Cameras.open(this, FrameSource.Facing.BACK, LEAST_PIXELS);
        viewfinder = new Viewfinder(this, camera, Guide.code(this), R.string.scan_why, this);
        viewfinder.begin();
    }

    /** An invite joins a fleet for whoever has it. */
    @Override
    protected boolean showsFaces() {
        return true;
    }

    @Override
    public void onFrame(Yuv picture, int rotationDeg) {
        String text = isDone ? null : reader.read(picture);
        if (text != null) {
            runOnUiThread(() -> found(text));
        }
    }

    @Override
    public void onLooking(boolean isLooking, boolean hasTorch) {
        hint.setVisibility(isLooking ? View.VISIBLE : View.INVISIBLE);
        setVisible(R.id.scan_torch, isLooking && hasTorch);
        light(false);
    }

    private void light(boolean isOn) {
        isTorchOn = isOn;
        viewfinder.setTorch(isOn);
        torch.setText(isOn ? R.string.scan_torch_off : R.string.scan_torch_on);
    }

    private void found(String text) {
        if (isDone || isFinishing()) {
            return;
        }
        try {
            Invite.parse(text);
        } catch (MienException error) {
            hint(text.startsWith(SCHEME) ? R.string.scan_damaged : R.string.scan_no_invite);
            return;
        }
        isDone = true;
        setResult(RESULT_OK, new Intent().putExtra(Extras.INVITE, text));
        finish();
    }

    /** The same code is read many times a second, and a screen reader says it once. */
    private void hint(int sentence) {
        String text = getString(sentence);
        if (!text.contentEquals(hint.getText())) {
            hint.setText(text);
        }
    }

    @Override
    protected void onResume() {
        super.onResume();
        viewfinder.onResume();
    }

    @Override
    protected void onPause() {
        viewfinder.onPause();
        super.onPause();
    }

    @Override
    public void onRequestPermissionsResult(int request, String[] permissions, int[] results) {
        viewfinder.onPermission(request, results);
    }
}
