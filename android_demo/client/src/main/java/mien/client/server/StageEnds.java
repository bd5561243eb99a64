package mien.client.server;

import java.util.EnumSet;
import java.util.Set;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.v1.RoundsOuterClass.Stage;

/** How long a phone listens to one attempt: until the end of a stage by its first event, whatever is said after it. */
public final class StageEnds {
    /** A task's deadlines are no longer. */
    private static final long LONGEST_MS = 7 * 86_400_000L;

    private static final long GRACE_MS = 600_000;

    private final Clock clock;
    private final Set<Stage> heard = EnumSet.noneOf(Stage.class);
    private long endMs;

    /** A stage that does not end: of a phone whose part is not in the sum, the round has gone on without it. */
    public static final class Overdue extends MienException {
        private static final long serialVersionUID = 1;

        Overdue() {
            super(ErrorCode.LATE, "the coordinator did not end a stage by its own deadline; nothing is lost, check in again");
        }

        /**
         * Returns what it is for a phone: where its part counts, only the coordinator can say what became of that. Closing
         * has no deadline.
         */
        public MienException orLater(boolean counts) {
            if (!counts) {
                return this;
            }
            return new MienException(
                    ErrorCode.UNREACHABLE,
                    "the coordinator takes long to end a round that this phone's part is in; it is asked again later",
                    this);
        }
    }

    StageEnds(Clock clock) {
        this.clock = clock;
        endMs = clock.monotonicMs() + GRACE_MS;
    }

    /** Takes an event; throws {@link Overdue} where its stage should have ended long ago. */
    void hear(Stage stage, long remainingMs) {
        long now = clock.monotonicMs();
        if (heard.add(stage)) {
            endMs = now + Math.max(0, Math.min(remainingMs, LONGEST_MS)) + GRACE_MS;
        }
        if (now > endMs) {
            throw new Overdue();
        }
    }
}
