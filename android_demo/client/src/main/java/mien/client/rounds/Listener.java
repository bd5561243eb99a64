package mien.client.rounds;

import mien.client.tasks.Disclosure;

/** Told what an owner may want to see, as it happens. */
public interface Listener {
    /** What leaves the phone, before it does; throws to leave the round instead. */
    void disclose(Disclosure disclosure);

    /** A stable word: fetching, training, trained, reported, keys, uploading, uploaded, unmask, resumed. */
    void progress(String word);
}
