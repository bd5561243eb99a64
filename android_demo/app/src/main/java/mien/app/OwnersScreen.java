package mien.app;

import android.content.Intent;
import android.os.Bundle;
import android.view.View;

/**
 * A screen that is the owner's alone: it opens only after the phone's own lock (PIN, pattern, password or a biometric of
 * Android's) was answered, as far as the phone has one; it stays open to the next ones for a minute. Whoever comes back
 * to it later is asked again, and sees nothing of it until then.
 */
public abstract class OwnersScreen extends Screen {
    private static final String ASKING = "mien.asking_owner";
    private boolean isOpen;
    private boolean isAsking;
    /** What the owner is asked for once more, on a screen that is open. */
    private Runnable asked;
    /** What the views of this screen held before it was turned, until it opens again. */
    private Bundle held;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        isAsking = saved != null && saved.getBoolean(ASKING);
    }

    @Override
    protected void onStart() {
        super.onStart();
        if (isAsking) {
            return; // the answer is on its way: one question is enough
        }
        Intent question = phone().owner.question(this);
        if (question == null) {
            letIn();
        } else {
            isAsking = true;
            setContentVisible(false);
            startActivityForResult(question, Owner.ASKED);
        }
    }

    private void letIn() {
        if (!isOpen) {
            isOpen = true;
            open();
            refresh();
            if (held != null) {
                super.onRestoreInstanceState(held);
                held = null;
            }
        }
        showWhetherGuarded();
        setContentVisible(true);
    }

    /** Does what the owner has to allow once more; where the phone's own lock stays shut, the screen ends. */
    protected final void asOwner(Runnable action) {
        Intent question = phone().owner.question(this);
        if (question == null) {
            action.run();
        } else {
            asked = action;
            isAsking = true;
            startActivityForResult(question, Owner.ASKED);
        }
    }

    private void setContentVisible(boolean visible) {
        findViewById(android.R.id.content).setVisibility(visible ? View.VISIBLE : View.INVISIBLE);
    }

    @Override
    protected void onSaveInstanceState(Bundle saved) {
        super.onSaveInstanceState(saved);
        if (held != null) {
            saved.putAll(held);
        }
        saved.putBoolean(ASKING, isAsking);
    }

    @Override
    protected void onRestoreInstanceState(Bundle saved) {
        if (isOpen) {
            super.onRestoreInstanceState(saved);
        } else {
            held = saved;
        }
    }

    /** Shows what only the owner may see; called once. */
    protected abstract void open();

    /** Shows how things stand by now: after it opened, and whenever the screen comes back to the front. */
    protected void refresh() {}

    /** Returns whether its owner was let in. */
    protected final boolean isOpen() {
        return isOpen;
    }

    @Override
    protected void onResume() {
        super.onResume();
        if (isOpen) {
            refresh();
        }
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        if (request != Owner.ASKED) {
            return;
        }
        isAsking = false;
        Runnable action = asked;
        asked = null;
        if (phone().owner.answered(request, result)) {
            letIn();
            if (action != null) {
                action.run();
            }
        } else {
            finish();
        }
    }
}
