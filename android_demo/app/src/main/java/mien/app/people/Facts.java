package mien.app.people;

import android.content.Context;
import mien.app.R;
import mien.app.Say;
import mien.client.people.Gallery;

/** What is to be said of an enrolled person. */
final class Facts {
    private Facts() {}

    static String name(Context context, Gallery.Person person) {
        return person.isDamaged ? context.getString(R.string.person_damaged, person.id) : person.name;
    }

    static String of(Context context, Gallery.Person person) {
        if (person.isDamaged) {
            return context.getString(R.string.person_damaged_text);
        }
        String pictures = Say.count(context, R.plurals.pictures, person.numImages());
        String enrolled = context.getString(R.string.enrolled_on, pictures, Say.day(context, person.enrolledMs));
        return enrolled + "\n" + training(context, person);
    }

    static String training(Context context, Gallery.Person person) {
        return person.trains
                ? context.getString(R.string.trains_since, Say.day(context, person.agreedMs))
                : context.getString(R.string.trains_not);
    }
}
