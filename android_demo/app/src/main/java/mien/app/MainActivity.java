package mien.app;

import android.app.Activity;
import android.content.Intent;
import android.os.Bundle;
import android.widget.Button;
import mien.app.join.JoinActivity;
import mien.app.settings.SelfTestActivity;
import mien.app.welcome.WelcomeActivity;
import mien.client.fl.Gallery;

/** Home: what to do next, and the ways to everything else. */
public final class MainActivity extends Screen {
    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.main, R.string.app_name);
        Rows rows = new Rows(findViewById(R.id.rows));
        rows.way(getString(R.string.self_test_title), getString(R.string.self_test_way), () -> open(SelfTestActivity.class));
    }

    @Override
    protected void onResume() {
        super.onResume();
        say((CharSequence) null);
        if (!phone().choices.welcomed()) {
            next(R.string.next_welcome, R.string.next_welcome_text, R.string.next_welcome_do, WelcomeActivity.class);
        } else if (!phone().hasJoined()) {
            next(R.string.next_join, R.string.next_join_text, R.string.next_join_do, JoinActivity.class);
        } else {
            work(this::numPeople, this::afterJoining);
        }
    }

    private int[] numPeople() {
        int trains = 0;
        java.util.List<Gallery.Person> people = phone().device.gallery.people();
        for (Gallery.Person person : people) {
            trains += person.trains ? 1 : 0;
        }
        return new int[] {people.size(), trains};
    }

    private void afterJoining(int[] counts) {
        if (counts[0] == 0) {
            next(R.string.next_enrol, R.string.next_enrol_text, R.string.next_enrol_do, Places.ENROL.from(this));
        } else if (counts[1] == 0) {
            next(R.string.next_verify, R.string.next_no_training, R.string.next_verify_do, Places.VERIFY.from(this));
        } else {
            next(R.string.next_verify, R.string.next_verify_text, R.string.next_verify_do, Places.VERIFY.from(this));
        }
    }

    private void next(int title, int text, int action, Class<? extends Activity> screen) {
        next(title, text, action, new Intent(this, screen));
    }

    private void next(int title, int text, int action, Intent screen) {
        setText(R.id.next_title, getString(title));
        setText(R.id.next_text, getString(text));
        Button button = findViewById(R.id.next);
        button.setText(action);
        setVisible(R.id.next, true);
        button.setOnClickListener(view -> startActivity(screen));
    }

    private void open(Class<? extends Activity> screen) {
        startActivity(new Intent(this, screen));
    }
}
