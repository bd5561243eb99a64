package mien.client.rounds;

import mien.client.tasks.Disclosure;

/** Told what an owner may want to see, as it happens, on the thread that takes part. */
public interface Listener {
    /** What leaves the phone, before it does; throws to leave the round instead. */
    void disclose(Disclosure disclosure);

    /** What happens now. */
    void on(Event event);
}
