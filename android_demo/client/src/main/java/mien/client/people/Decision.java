package mien.client.people;

import java.util.Collections;
import java.util.List;

/** What a picture of a face was recognised as; no score, which nobody could use but to get around the threshold. */
public final class Decision {
    /** The person, null for unknown. */
    public final Gallery.Person person;

    /** Others who reach the threshold too, the nearest first: people who look alike, or one under several names. */
    public final List<Gallery.Person> also;

    /** Whether more are enrolled than the model can tell from strangers: then a search names too many of these. */
    public final boolean isAmongTooMany;

    Decision(Gallery.Person person) {
        this(person, Collections.<Gallery.Person>emptyList(), false);
    }

    Decision(Gallery.Person person, List<Gallery.Person> also, boolean isAmongTooMany) {
        this.person = person;
        this.also = Collections.unmodifiableList(also);
        this.isAmongTooMany = isAmongTooMany;
    }

    /** Returns whether the crop shows the person. */
    public boolean isMatch() {
        return person != null;
    }
}
