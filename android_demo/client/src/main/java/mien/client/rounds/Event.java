package mien.client.rounds;

import java.util.Locale;

/** What happens on the way through a round, in the order in which it does; some of it is left out by some rounds. */
public enum Event {
    /** A round that was trained for before, and not settled, goes on. */
    RESUMED,
    /** A model, or what the method tells all phones, is downloaded. */
    FETCHING,
    /** The registrar is away, and the coordinator alone has signed the log of rounds. */
    UNCOSIGNED,
    /** Pictures train. */
    TRAINING,
    /** Pictures are summed up, and nothing is trained. */
    SUMMING,
    /** Pictures measure how well a model knows its people, and nothing is trained. */
    MEASURING,
    /** Training is over, and what it made is being kept. */
    TRAINED,
    /** Summing is over, and what it made is being kept. */
    SUMMED,
    /** Measuring is over, and what it made is being kept. */
    MEASURED,
    /** What was made is kept; the coordinator is being told, and the phone waits for it. */
    KEPT,
    /** The coordinator knows that this phone is ready. */
    REPORTED,
    /** Keys for this sum alone go out. */
    KEYS,
    /** Shares of them go out, sealed for other phones. */
    SHARES,
    /** The masked vector is sent. */
    UPLOAD,
    /** The coordinator counts it. */
    UPLOADED,
    /** The phone signs who is in the sum. */
    CONSISTENCY,
    /** Shares go out that uncover the sum. */
    UNMASK,
    /** The coordinator could not be told that this phone left; the deadline of the stage tells it. */
    LEAVE_UNHEARD,
    /** The round is settled, and the next model is left to another time. */
    UPDATE_POSTPONED;

    /** Returns the same as a stable word in lower case, for logs. */
    public String word() {
        return name().toLowerCase(Locale.ROOT);
    }

    /**
     * Returns whether the phone computes, or keeps what it computed, until the next event: then it looks by itself whether
     * it may go on, and interrupting its thread would only cost what it is about to write.
     */
    public boolean isComputing() {
        switch (this) {
            case TRAINING:
            case TRAINED:
            case SUMMING:
            case SUMMED:
            case MEASURING:
            case MEASURED:
                return true;
            default:
                return false;
        }
    }
}
