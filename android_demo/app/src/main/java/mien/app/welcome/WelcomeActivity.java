package mien.app.welcome;

import android.content.Intent;
import android.os.Bundle;
import android.widget.CheckBox;
import mien.app.Choices;
import mien.app.Phone;
import mien.app.R;
import mien.app.Screen;
import mien.app.people.DeleteActivity;
import mien.client.fl.Gallery;

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
        onClick(R.id.withdraw, () -> startActivity(new Intent(this, DeleteActivity.class)));
    }

    /** Nothing trains that may not be recognised, and nothing goes on before that. */
    private void follow() {
        boolean agreed = recognises.isChecked();
        trains.setEnabled(agreed);
        if (!agreed) {
            trains.setChecked(false);
        }
        findViewById(R.id.agree).setEnabled(agreed);
        boolean withdraws = !agreed && phone().choices.recognises();
        setVisible(R.id.withdraw_text, withdraws);
        setVisible(R.id.withdraw, withdraws);
    }

    /** Who takes back the agreement to training takes it back for everybody here; each person gives it anew. */
    private void agree() {
        boolean stops = phone().choices.trains() && !trains.isChecked();
        phone().choices.agree(recognises.isChecked(), trains.isChecked());
        if (stops) {
            work(this::withdrawAll, withdrawn -> finish());
        } else {
            finish();
        }
    }

    private boolean withdrawAll() {
        Phone phone = phone();
        for (Gallery.Person person : phone.device.people()) {
            if (person.trains) {
                phone.device.setConsent(person.id, false);
            }
        }
        phone.settle(this);
        return true;
    }
}
