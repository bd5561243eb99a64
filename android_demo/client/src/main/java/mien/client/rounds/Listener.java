package mien.client.rounds;

import mien.client.tasks.Disclosure;

/** Told what an owner may want to see, as it happens. */
public interface Listener {
    /** What leaves the phone, before it does; throws to leave the round instead. */
    void disclose(Disclosure disclosure);

    /**
     * A stable word: fetching, training, trained, reported, keys, uploading, uploaded, unmask, resumed; uncosigned where the
     * registrar is away and the coordinator alone has signed the log of rounds.
     */
    void progress(String word);
}
