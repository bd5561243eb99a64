package mien.app.people;

import android.app.AlertDialog;
import android.content.Intent;
import android.widget.Switch;
import mien.app.Extras;
import mien.app.OwnersScreen;
import mien.app.R;
import mien.app.training.TrainingActivity;
import mien.client.MienException;
import mien.client.people.Gallery;

/** One enrolled person: what is kept of them, their agreement to training, and removing them. */
public final class PersonActivity extends OwnersScreen {
    private int id;
    private Switch trains;

    @Override
    protected boolean showsFaces() {
        return true;
    }

    @Override
    protected void open() {
        id = getIntent().getIntExtra(Extras.PERSON, 0);
        show(R.layout.person, R.string.person_title);
        trains = findViewById(R.id.person_trains);
        trains.setOnClickListener(view -> agree(trains.isChecked()));
        onClick(R.id.person_remove, this::askToRemove);
        onClick(R.id.person_training, () -> startActivity(new Intent(this, TrainingActivity.class)));
    }

    @Override
    protected void refresh() {
        work(() -> phone().device().person(id), this::showPerson);
    }

    private void showPerson(Gallery.Person person) {
        setText(R.id.person_name, Facts.name(this, person));
        setText(R.id.person_facts, Facts.of(this, person));
        boolean waits = person.trains && !phone().choices.letsTrain();
        int text = person.trains ? R.string.person_trains_yes : R.string.person_trains_no;
        setText(R.id.person_trains_text, getString(waits ? R.string.trains_off : text));
        setVisible(R.id.person_training, waits);
        trains.setChecked(person.trains);
        trains.setEnabled(!person.isDamaged);
    }

    private void agree(boolean agrees) {
        work(
                () -> {
                    phone().device().setConsent(id, agrees);
                    phone().settle(this);
                    return phone().device().person(id);
                },
                this::showPerson,
                error -> showKept(error, !agrees));
    }

    /** What failed may have been stored or not: the switch shows what is, or what was where that cannot be read. */
    private void showKept(MienException error, boolean before) {
        say(error);
        work(() -> phone().device().person(id), this::showPerson, again -> trains.setChecked(before));
    }

    private void askToRemove() {
        new AlertDialog.Builder(this)
                .setTitle(R.string.person_remove_title)
                .setMessage(R.string.person_remove_text)
                .setPositiveButton(R.string.person_remove, (dialog, which) -> remove())
                .setNegativeButton(R.string.keep, null)
                .show();
    }

    private void remove() {
        work(
                () -> {
                    phone().device().remove(id);
                    phone().settle(this);
                    return id;
                },
                removed -> finish());
    }
}
