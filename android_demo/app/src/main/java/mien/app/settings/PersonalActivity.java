package mien.app.settings;

import android.content.Intent;
import mien.app.OwnersScreen;
import mien.app.Phone;
import mien.app.R;
import mien.app.people.PeopleActivity;
import mien.client.Device;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Fits the fleet's model to the people of this phone, on this phone alone, and goes back to the fleet's. */
public final class PersonalActivity extends OwnersScreen {
    @Override
    protected void open() {
        show(R.layout.personal, R.string.personal_title);
        onClick(R.id.personal_do, this::fit);
        onClick(R.id.personal_people, () -> startActivity(new Intent(this, PeopleActivity.class)));
        onClick(R.id.personal_forget, this::forget);
    }

    @Override
    protected void refresh() {
        if (isUnderWay()) {
            showWorking();
        } else {
            work(this::looked, this::showUnlessWorking);
        }
    }

    /** What was asked for before a fit began is not shown over it. */
    private void showUnlessWorking(Runnable shown) {
        if (!isUnderWay()) {
            shown.run();
        }
    }

    /** Returns what shows how things stand; beside the main thread. */
    private Runnable looked() {
        Device device = phone().device();
        if (device.status().numAgreed == 0) {
            return () -> showState(R.string.personal_nobody, R.string.personal_nobody_text, false, false);
        }
        boolean isPersonal = device.recogniser().isPersonal();
        int state = isPersonal ? R.string.personal_used : R.string.personal_not_used;
        int text = isPersonal ? R.string.personal_used_text : R.string.personal_not_used_text;
        return () -> showState(state, text, true, isPersonal);
    }

    private void showState(int state, int text, boolean isPossible, boolean isPersonal) {
        setText(R.id.personal_state, getString(state));
        setText(R.id.personal_text, getString(text));
        setVisible(R.id.personal_progress, false);
        setVisible(R.id.personal_do, isPossible);
        setVisible(R.id.personal_people, !isPossible);
        setVisible(R.id.personal_forget, isPersonal);
    }

    private void showWorking() {
        showState(R.string.personal_working, R.string.personal_working_text, false, false);
        setVisible(R.id.personal_people, false);
        setVisible(R.id.personal_progress, true);
    }

    /** Embeds all public faces of the model, too. */
    private void fit() {
        say((CharSequence) null);
        Phone phone = phone();
        keepOn(
                () -> phone.device().personalise().isUsed,
                (screen, isUsed) -> ((PersonalActivity) screen).fitted(isUsed),
                (screen, error) -> ((PersonalActivity) screen).failed(error));
        showWorking();
    }

    private void fitted(boolean isUsed) {
        if (!isOpen()) {
            return; // its owner is being asked for; it shows how things stand once it opens
        }
        if (isUsed) {
            refresh();
        } else {
            showState(R.string.personal_no_better, R.string.personal_no_better_text, true, false);
        }
    }

    private void failed(MienException error) {
        if (!isOpen()) {
            return;
        }
        refresh();
        if (error.code() == ErrorCode.CONFIG) {
            complain(getText(R.string.personal_impossible));
        } else {
            say(error);
        }
    }

    private void forget() {
        work(() -> phone().device().forgetPersonal(), forgotten -> refresh());
    }
}
