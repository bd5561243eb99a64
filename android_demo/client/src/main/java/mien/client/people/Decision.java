package mien.client.people;

/** What a picture of a face was recognised as; no score, which nobody could use but to get around the threshold. */
public final class Decision {
    /** The person, null for unknown. */
    public final Gallery.Person person;

    Decision(Gallery.Person person) {
        this.person = person;
    }

    public boolean isMatch() {
        return person != null;
    }
}
