package mien.client.rounds;

import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;

/** What ends a round that was begun: a condition that does not hold any more. */
public final class Leaving {
    private Leaving() {}

    /** Throws LATE where something is missing. */
    public static void unlessMet(Conditions conditions) {
        List<String> unmet = conditions.unmet();
        if (!unmet.isEmpty()) {
            throw new MienException(
                    ErrorCode.LATE, "the phone may not go on now (" + String.join(", ", unmet) + "); nothing is lost");
        }
    }
}
