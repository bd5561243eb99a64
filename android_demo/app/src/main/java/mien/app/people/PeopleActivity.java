package mien.app.people;

import android.content.Intent;
import java.util.List;
import mien.app.Extras;
import mien.app.OwnersScreen;
import mien.app.R;
import mien.app.Rows;
import mien.app.enrol.EnrolActivity;
import mien.client.Device;
import mien.client.people.Gallery;

/** Who is enrolled. */
public final class PeopleActivity extends OwnersScreen {
    @Override
    protected boolean showsFaces() {
        return true;
    }

    @Override
    protected void open() {
        show(R.layout.people, R.string.people_title);
        onClick(R.id.enrol, () -> startActivity(new Intent(this, EnrolActivity.class)));
        onClick(R.id.delete_all, () -> startActivity(new Intent(this, DeleteActivity.class)));
    }

    @Override
    protected void refresh() {
        work(this::looked, Runnable::run);
    }

    /** Returns what shows everybody; beside the main thread. */
    private Runnable looked() {
        Device device = phone().device();
        List<Gallery.Person> people = device.people();
        boolean hasJoined = device.hasJoined();
        return () -> showPeople(people, hasJoined);
    }

    private void showPeople(List<Gallery.Person> people, boolean hasJoined) {
        Rows rows = new Rows(findViewById(R.id.people));
        for (Gallery.Person person : people) {
            rows.way(Facts.name(this, person), Facts.of(this, person), () -> open(person.id));
        }
        setVisible(R.id.nobody, people.isEmpty());
        // Nobody can be enrolled before there is a model to enrol with.
        setVisible(R.id.enrol, hasJoined && phone().choices.recognises());
    }

    private void open(int person) {
        startActivity(new Intent(this, PersonActivity.class).putExtra(Extras.PERSON, person));
    }
}
