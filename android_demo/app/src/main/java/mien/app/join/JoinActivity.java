package mien.app.join;

import android.content.Intent;
import android.os.Bundle;
import android.view.View;
import android.widget.Button;
import android.widget.EditText;
import android.widget.TextView;
import mien.app.Extras;
import mien.app.Phone;
import mien.app.R;
import mien.app.Screen;
import mien.app.Sentences;
import mien.app.scan.ScanActivity;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.join.Identity;
import mien.client.wire.Invite;
import mien.client.wire.Retry;

/** Joining by an invite, pasted or scanned; whom it names is shown before anything is sent. */
public final class JoinActivity extends Screen {
    private static final int SCAN = 1;
    private static final String STEP = "step";
    private static final String JOINED = "joined";
    private static final int[] STEPS = {R.id.asking, R.id.asked, R.id.spent, R.id.joined};

    private EditText invite;
    private Invite compared;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.join, R.string.join_title);
        invite = findViewById(R.id.invite);
        onClick(R.id.look, this::look);
        onClick(R.id.scan, this::scan);
        onClick(R.id.join, this::join);
        onClick(R.id.other, this::askAgain);
        onClick(R.id.spent_paste, this::askAgain);
        onClick(R.id.spent_scan, this::scan);
        onClick(R.id.whole, () -> showFingerprints(!isShown(R.id.fingerprints)));
        onClick(R.id.done, this::finish);
    }

    @Override
    protected void onSaveInstanceState(Bundle saved) {
        super.onSaveInstanceState(saved);
        for (int i = 0; i < STEPS.length; i++) {
            if (isShown(STEPS[i])) {
                saved.putInt(STEP, i);
            }
        }
        saved.putCharSequence(JOINED, this.<TextView>findViewById(R.id.joined).getText());
    }

    /** Shows the step again that was shown before the screen was turned, and what goes on meanwhile. */
    @Override
    protected void onRestoreInstanceState(Bundle saved) {
        super.onRestoreInstanceState(saved);
        int shown = STEPS[saved.getInt(STEP)];
        step(shown);
        if (shown == R.id.asked) {
            look();
        }
        if (shown == R.id.joined) {
            setText(R.id.joined, saved.getCharSequence(JOINED));
            setVisible(R.id.done, !isUnderWay());
        }
        if (isUnderWay()) {
            setJoining(true);
            say(getString(shown == R.id.joined ? R.string.join_fetching : R.string.join_working));
        }
    }

    /** An invite lets whoever has it join first. */
    @Override
    protected boolean showsFaces() {
        return true;
    }

    @Override
    protected void onActivityResult(int asked, int result, Intent data) {
        if (asked == SCAN && result == RESULT_OK && data != null) {
            invite.setText(data.getStringExtra(Extras.INVITE));
            look();
        }
    }

    /** Shows whom the invite names. */
    private void look() {
        try {
            Invite read = Invite.parse(text());
            compared = read;
            say((CharSequence) null);
            setText(R.id.code, getText(R.string.join_code_working));
            findViewById(R.id.join).setEnabled(false);
            showFingerprints(false);
            setText(R.id.address, read.registrarAddress);
            setText(R.id.registrar, Fingerprint.grouped(read.registrarCaSha256));
            setText(R.id.coordinator, Fingerprint.grouped(read.coordinatorCaSha256));
            step(R.id.asked);
            work(() -> read.code(), code -> compare(read, code));
        } catch (MienException error) {
            complain(getString(R.string.join_not_whole));
        }
    }

    /** Nobody joins before there is something to compare; a code that comes late is not shown for another invite. */
    private void compare(Invite read, String code) {
        if (read == compared) {
            setText(R.id.code, Fingerprint.inTwoLines(code));
            findViewById(R.id.join).setEnabled(!isUnderWay());
        }
    }

    private void scan() {
        startActivityForResult(new Intent(this, ScanActivity.class), SCAN);
    }

    private void showFingerprints(boolean shows) {
        setVisible(R.id.fingerprints, shows);
        this.<Button>findViewById(R.id.whole).setText(shows ? R.string.join_whole_hide : R.string.join_whole);
    }

    private boolean isShown(int id) {
        return findViewById(id).getVisibility() == View.VISIBLE;
    }

    private void join() {
        Invite shown = compared;
        Phone phone = phone();
        setJoining(true);
        say(getString(R.string.join_working));
        keepOn(
                () -> phone.device().join(shown),
                (screen, identity) -> ((JoinActivity) screen).joined(identity),
                (screen, error) -> ((JoinActivity) screen).failed(error));
    }

    /** While it joins by one invite no other is looked at: what comes of it would be said of that. */
    private void setJoining(boolean joins) {
        findViewById(R.id.join).setEnabled(!joins);
        findViewById(R.id.other).setEnabled(!joins);
    }

    private void joined(Identity identity) {
        invite.setText(null); // the token in it is used up, and nobody's business
        setText(R.id.joined, getString(R.string.join_joined, identity.population));
        step(R.id.joined);
        say(getString(R.string.join_fetching));
        Phone phone = phone();
        keepOn(
                () -> phone.device().update(Retry.AT_A_SCREEN_MS),
                (screen, changed) -> ((JoinActivity) screen).ready(),
                (screen, error) -> ((JoinActivity) screen).withoutModel(error));
    }

    private void ready() {
        say((CharSequence) null);
        setVisible(R.id.done, true);
    }

    /** It has joined all the same; home says how to go on. */
    private void withoutModel(MienException error) {
        complain(getString(R.string.join_no_model, Sentences.of(getResources(), error)));
        setVisible(R.id.done, true);
    }

    private void failed(MienException error) {
        setJoining(false);
        if (error.code() == ErrorCode.ALREADY_EXISTS) {
            complain(getText(R.string.join_other_fleet));
        } else if (error.code() == ErrorCode.UNREACHABLE) {
            complain(getText(R.string.join_no_answer)); // nothing joins by itself
        } else if (error.code() == ErrorCode.INVITE) {
            say(error);
            invite.setText(null);
            step(R.id.spent); // to join by it again is in vain
        } else {
            say(error);
        }
    }

    private void askAgain() {
        say((CharSequence) null);
        step(R.id.asking);
    }

    private void step(int shown) {
        for (int id : STEPS) {
            setVisible(id, id == shown);
        }
    }

    private String text() {
        return invite.getText().toString().trim();
    }
}
