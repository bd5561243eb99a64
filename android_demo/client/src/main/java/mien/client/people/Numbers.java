package mien.client.people;

import java.util.Collections;
import mien.client.MienException;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Json;

/**
 * The numbers that name people: each is given once in the life of a home, also across a wipe, so that what was kept
 * under a number, or is being made, is never taken for somebody else's.
 */
public final class Numbers {
    public static final String FILE = "numbers.json";
    private static final String GIVEN = "given";

    private final Folder home;

    /** Remembers the last one in a file of the home. */
    public Numbers(Folder home) {
        this.home = home;
    }

    /** Returns a number that was never given, above {@code present}; it is noted as given before anybody has it. */
    synchronized int next(int present) {
        int number = Math.addExact(Math.max(given(), present), 1);
        home.write(FILE, Bytes.utf8(Json.write(Collections.singletonMap(GIVEN, number))));
        return number;
    }

    /** Returns the highest number given; 0 where nothing is noted, or what is noted is damaged. */
    private int given() {
        byte[] note = home.read(FILE);
        try {
            return note == null ? 0 : Json.object(note, FILE).count(GIVEN, 0);
        } catch (MienException damaged) {
            return 0;
        }
    }
}
