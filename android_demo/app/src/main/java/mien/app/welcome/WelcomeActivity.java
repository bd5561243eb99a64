package mien.app.welcome;

import android.os.Bundle;
import android.widget.CheckBox;
import mien.app.Choices;
import mien.app.R;
import mien.app.Screen;

/** What the app is for, what leaves the phone, what the app cannot do; and two agreements, each given by itself. */
public final class WelcomeActivity extends Screen {
    private CheckBox recognises;
    private CheckBox trains;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.welcome, R.string.welcome_title);
        Choices choices = phone().choices;
        recognises = findViewById(R.id.recognises);
        trains = findViewById(R.id.trains);
        recognises.setChecked(choices.recognises());
        trains.setChecked(choices.trains());
        recognises.setOnCheckedChangeListener((box, checked) -> follow());
        follow();
        onClick(R.id.agree, this::agree);
        onClick(R.id.decline, this::finish);
    }

    /** Nothing trains that may not be recognised, and nothing goes on before that. */
    private void follow() {
        boolean agreed = recognises.isChecked();
        trains.setEnabled(agreed);
        if (!agreed) {
            trains.setChecked(false);
        }
        findViewById(R.id.agree).setEnabled(agreed);
    }

    private void agree() {
        phone().choices.agree(recognises.isChecked(), trains.isChecked());
        finish();
    }
}
