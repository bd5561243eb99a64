package mien.app.welcome;

import android.content.Intent;
import android.os.Bundle;
import android.widget.CheckBox;
import mien.app.Choices;
import mien.app.Owner;
import mien.app.Phone;
import mien.app.R;
import mien.app.Screen;
import mien.app.people.DeleteActivity;
import mien.client.Device;
import mien.client.people.Gallery;

/** What the app is for, what leaves the phone, what the app cannot do; and two agreements, each given by itself. */
public final class WelcomeActivity extends Screen {
    private CheckBox recognises;
    private CheckBox trains;
    private boolean trainedBefore;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.welcome, R.string.welcome_title);
        Choices choices = phone().choices;
        recognises = findViewById(R.id.recognises);
        trains = findViewById(R.id.trains);
        recognises.setChecked(choices.recognises());
        trainedBefore = choices.trains();
        trains.setChecked(trainedBefore);
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

    /** Only the owner agrees to training; anybody may not agree to it any more. */
    private void agree() {
        Intent question = trains.isChecked() && !trainedBefore ? phone().owner.question(this) : null;
        if (question == null) {
            agreed();
        } else {
            startActivityForResult(question, Owner.ASKED);
        }
    }

    @Override
    protected void onActivityResult(int asked, int result, Intent data) {
        if (phone().owner.answered(asked, result)) {
            agreed();
        }
    }

    /** Who takes back the agreement to training takes it back for everybody here; each person gives it anew. */
    private void agreed() {
        boolean stops = trainedBefore && !trains.isChecked();
        phone().choices.agree(recognises.isChecked(), trains.isChecked());
        if (stops) {
            phone().training.stop();
        }
        work(() -> settled(stops), settled -> finish());
    }

    private boolean settled(boolean stops) {
        Phone phone = phone();
        if (stops) {
            withdrawAll(phone.device());
        }
        phone.settle(this);
        return true;
    }

    private static void withdrawAll(Device device) {
        for (Gallery.Person person : device.people()) {
            if (person.trains) {
                device.setConsent(person.id, false);
            }
        }
    }
}
