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

/** What the app is for, what leaves the phone, and two agreements, each given by itself: three pages. */
public final class WelcomeActivity extends Screen {
    private static final String PAGE = "page";
    private static final int[] PAGES = {R.id.welcome_app, R.id.welcome_leaving, R.id.welcome_choice};
    private static final int[] TITLES = {R.string.welcome_title, R.string.welcome_leaves_title, R.string.welcome_choice_title};
    private static final int LAST = PAGES.length - 1;

    private int page;
    private CheckBox recognises;
    private CheckBox trains;
    private boolean trainedBefore;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.welcome, R.layout.welcome_bar, R.string.welcome_title);
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
        onClick(R.id.welcome_next, () -> turnTo(page + 1));
        // Who has read it comes back to change what was agreed to; the pages before are a step away.
        turnTo(saved != null ? saved.getInt(PAGE) : choices.welcomed() ? LAST : 0);
        onClick(R.id.withdraw, () -> startActivity(new Intent(this, DeleteActivity.class)));
    }

    private void turnTo(int wanted) {
        page = wanted;
        title(TITLES[page]);
        for (int i = 0; i < PAGES.length; i++) {
            setVisible(PAGES[i], i == page);
        }
        setText(R.id.welcome_page, getString(R.string.welcome_page, page + 1, PAGES.length));
        setVisible(R.id.welcome_next, page < LAST);
        setVisible(R.id.agree, page == LAST);
        setVisible(R.id.decline, page == LAST);
        findViewById(R.id.scrolling).scrollTo(0, 0);
        onBack(page == 0 ? null : () -> turnTo(page - 1));
    }

    @Override
    protected void onSaveInstanceState(Bundle saved) {
        super.onSaveInstanceState(saved);
        saved.putInt(PAGE, page);
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
