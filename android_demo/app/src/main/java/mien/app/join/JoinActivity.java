package mien.app.join;

import android.content.Intent;
import android.os.Bundle;
import android.widget.EditText;
import mien.app.Extras;
import mien.app.R;
import mien.app.Screen;
import mien.app.Sentences;
import mien.app.scan.ScanActivity;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.join.Identity;
import mien.client.wire.Invite;

/** Joining by an invite, pasted or scanned; whom it names is shown before anything is sent. */
public final class JoinActivity extends Screen {
    private static final int SCAN = 1;
    private EditText invite;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.join, R.string.join_title);
        invite = findViewById(R.id.invite);
        onClick(R.id.look, this::look);
        onClick(R.id.scan, () -> startActivityForResult(new Intent(this, ScanActivity.class), SCAN));
        onClick(R.id.join, this::join);
        onClick(R.id.other, this::askAgain);
        onClick(R.id.done, this::finish);
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
            say((CharSequence) null);
            setText(R.id.address, read.registrarAddress);
            setText(R.id.registrar, Fingerprint.grouped(read.registrarCaSha256));
            setText(R.id.coordinator, Fingerprint.grouped(read.coordinatorCaSha256));
            step(R.id.asked);
        } catch (MienException error) {
            complain(getString(R.string.join_not_whole));
        }
    }

    private void join() {
        String url = text();
        findViewById(R.id.join).setEnabled(false);
        say(getString(R.string.join_working));
        ask(() -> phone().device().join(url), this::joined, this::failed);
    }

    private void joined(Identity identity) {
        invite.setText(null); // the token in it is used up, and nobody's business
        setText(R.id.joined, getString(R.string.join_joined, identity.population));
        step(R.id.joined);
        say(getString(R.string.join_fetching));
        ask(() -> phone().device().update(), changed -> ready(), this::withoutModel);
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
        findViewById(R.id.join).setEnabled(true);
        if (error.code() == ErrorCode.ALREADY_EXISTS) {
            complain(getText(R.string.join_other_fleet));
        } else {
            say(error);
        }
    }

    private void askAgain() {
        say((CharSequence) null);
        step(R.id.asking);
    }

    private void step(int shown) {
        for (int id : new int[] {R.id.asking, R.id.asked, R.id.joined}) {
            setVisible(id, id == shown);
        }
    }

    private String text() {
        return invite.getText().toString().trim();
    }
}
