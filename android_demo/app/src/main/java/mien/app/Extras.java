package mien.app;

/** What screens hand to one another, by name. */
public final class Extras {
    /** The text of an invite: the result of scanning. */
    public static final String INVITE = "mien.app.invite";
    /** The number of an enrolled person. */
    public static final String PERSON = "mien.app.person";

    /** The name of a limit of the owner's. */
    public static final String LIMIT = "mien.app.limit";

    private Extras() {}
}
