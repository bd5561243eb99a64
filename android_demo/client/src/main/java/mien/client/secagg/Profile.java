package mien.client.secagg;

import mien.client.ErrorCode;
import mien.client.MienException;

/** What the server is assumed to do; one byte of the configuration, a word of the task. */
public enum Profile {
    MALICIOUS_SERVER(1, "malicious_server"),
    HONEST_BUT_CURIOUS(2, "honest_but_curious");

    final int number;
    final String word;

    Profile(int number, String word) {
        this.number = number;
        this.word = word;
    }

    /** Returns whether devices prove to one another that they were told of the same survivors. */
    public boolean hasConsistencyRound() {
        return this == MALICIOUS_SERVER;
    }

    static Profile of(int number) {
        for (Profile each : values()) {
            if (each.number == number) {
                return each;
            }
        }
        throw new MienException(ErrorCode.VERSION, "the round asks for a profile that is unknown here; upgrade");
    }

    /** Returns the profile that a task names; throws CONFIG for another word. */
    public static Profile of(String word) {
        for (Profile each : values()) {
            if (each.word.equals(word)) {
                return each;
            }
        }
        throw new MienException(ErrorCode.CONFIG, "the task names the profile " + word + ", unknown here; upgrade");
    }
}
