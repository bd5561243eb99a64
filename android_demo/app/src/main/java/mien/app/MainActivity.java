package mien.app;

import android.app.Activity;
import android.content.Intent;
import android.os.Bundle;
import android.widget.Button;
import android.widget.TextView;
import mien.app.enrol.EnrolActivity;
import mien.app.join.JoinActivity;
import mien.app.people.DeleteActivity;
import mien.app.people.PeopleActivity;
import mien.app.settings.SettingsActivity;
import mien.app.training.TrainingActivity;
import mien.app.verify.VerifyActivity;
import mien.app.welcome.WelcomeActivity;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Status;

/** Home: what to do next, and the ways to everything else. */
public final class MainActivity extends Screen {
    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.main, R.string.app_name);
        Rows rows = new Rows(findViewById(R.id.rows));
        rows.way(getString(R.string.people_title), getString(R.string.people_way), () -> open(PeopleActivity.class));
        rows.way(getString(R.string.training_title), getString(R.string.training_way), () -> open(TrainingActivity.class));
        rows.way(getString(R.string.settings_title), getString(R.string.settings_way), () -> open(SettingsActivity.class));
        onClick(R.id.next_recognise, () -> open(VerifyActivity.class));
    }

    @Override
    protected boolean isHome() {
        return true;
    }

    @Override
    protected void onResume() {
        super.onResume();
        look();
    }

    private void look() {
        say((CharSequence) null);
        work(this::looked, Runnable::run, this::failed);
    }

    /** Returns what shows the next thing to do; beside the main thread. */
    private Runnable looked() {
        if (!phone().choices.welcomed()) {
            return () -> next(R.string.next_welcome, R.string.next_welcome_text, R.string.next_welcome_do, WelcomeActivity.class);
        }
        if (!phone().device().hasJoined()) {
            return () -> next(R.string.next_join, R.string.next_join_text, R.string.next_join_do, JoinActivity.class);
        }
        phone().settle(this);
        Status status = phone().device().status();
        return () -> afterJoining(status);
    }

    private void afterJoining(Status status) {
        phone().lookForModel(getApplicationContext());
        setVisible(R.id.next_recognise, status.lostKey && status.numPeople > status.numDamaged);
        boolean opens = status.numPeople == 0 || status.numDamaged < status.numPeople || !status.modelId.isEmpty();
        if (status.lostPeople) {
            gone(R.string.people_lost_title, R.string.error_key_lost);
        } else if (!opens) {
            damaged(); // nobody's record and no template: somebody changed them
        } else if (status.lostKey) {
            next(R.string.lost_title, R.string.lost_text, R.string.lost_do, JoinActivity.class);
            isWrong(getString(R.string.lost_name) + "\n" + status.deviceId);
        } else if (status.modelId.isEmpty()) {
            next(R.string.next_model, R.string.next_model_text, R.string.next_model_do, SettingsActivity.class);
        } else if (status.numPeople == 0) {
            next(R.string.next_enrol, R.string.next_enrol_text, R.string.next_enrol_do, EnrolActivity.class);
        } else {
            next(R.string.next_verify, training(status), R.string.next_verify_do, VerifyActivity.class);
        }
    }

    /**
     * What was changed, or has lost its key for good, never opens again. A key store that does not answer now is asked again
     * by a touch: nobody is led to deleting before it is known that something is lost.
     */
    private void failed(MienException error) {
        if (error.code() == ErrorCode.CORRUPT_DATA) {
            damaged();
        } else if (error.code() == ErrorCode.KEY_LOST) {
            gone(R.string.people_lost_title, R.string.error_key_lost);
        } else if (error.code().isOutOfReach()) {
            next(R.string.waits_title, Sentences.of(getResources(), error), R.string.waits_do, this::look);
        } else {
            say(error);
        }
    }

    private void damaged() {
        gone(R.string.damaged_title, R.string.error_corrupt_data);
    }

    private void gone(int title, int text) {
        next(title, text, R.string.delete_title, DeleteActivity.class);
        isWrong("");
    }

    private int training(Status status) {
        if (status.numAgreed == 0) {
            return R.string.next_no_training;
        }
        if (!phone().choices.trains()) {
            return R.string.next_off;
        }
        return phone().choices.paused() ? R.string.next_paused : R.string.next_verify_text;
    }

    private void next(int title, int text, int action, Class<? extends Activity> screen) {
        next(title, getString(text), action, screen);
    }

    private void next(int title, CharSequence text, int action, Class<? extends Activity> screen) {
        next(title, text, action, () -> open(screen));
    }

    private void next(int title, CharSequence text, int action, Runnable does) {
        ground(R.drawable.card_tint, R.color.on_tint, 0);
        setVisible(R.id.next_more, false);
        setText(R.id.next_title, getString(title));
        setText(R.id.next_text, text);
        Button button = findViewById(R.id.next);
        button.setText(action);
        setVisible(R.id.next, true);
        button.setOnClickListener(view -> does.run());
    }

    /** Shows that what is to be done next mends something, with what the owner needs to tell somebody; empty: nothing. */
    private void isWrong(String more) {
        ground(R.drawable.card_danger, R.color.on_danger_tint, R.drawable.icon_wrong);
        setText(R.id.next_more, more);
        setVisible(R.id.next_more, !more.isEmpty());
    }

    private void ground(int card, int colour, int mark) {
        findViewById(R.id.next_card).setBackgroundResource(card);
        this.<TextView>findViewById(R.id.next_title).setTextColor(getColor(colour));
        this.<TextView>findViewById(R.id.next_title).setCompoundDrawablesRelativeWithIntrinsicBounds(mark, 0, 0, 0);
        this.<TextView>findViewById(R.id.next_text).setTextColor(getColor(colour));
        this.<TextView>findViewById(R.id.next_more).setTextColor(getColor(colour));
    }

    private void open(Class<? extends Activity> screen) {
        startActivity(new Intent(this, screen));
    }
}
