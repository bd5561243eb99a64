package mien.app;

import android.app.KeyguardManager;
import android.content.Intent;
import android.os.Bundle;

/**
 * A screen that is the owner's alone: it opens only after the phone's own lock (PIN, pattern, password or a biometric of
 * Android's) was answered, as far as the phone has one; it stays open to the next ones for a minute.
 */
public abstract class OwnersScreen extends Screen {
    private static final int ASK_OWNER = 4817;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        if (phone().owner.isHere()) {
            open();
            return;
        }
        Intent question = question();
        if (question == null) {
            open();
        } else {
            startActivityForResult(question, ASK_OWNER);
        }
    }

    /** Shows what only the owner may see; called once. */
    protected abstract void open();

    // Its successor cannot ask for the PIN alone before Android 11.
    @SuppressWarnings("deprecation")
    private Intent question() {
        KeyguardManager lock = getSystemService(KeyguardManager.class);
        return lock.createConfirmDeviceCredentialIntent(getString(R.string.owner_title), getString(R.string.owner_text));
    }

    @Override
    protected void onActivityResult(int asked, int result, Intent data) {
        if (asked != ASK_OWNER) {
            return;
        }
        if (result == RESULT_OK) {
            phone().owner.came();
            open();
        } else {
            finish();
        }
    }
}
