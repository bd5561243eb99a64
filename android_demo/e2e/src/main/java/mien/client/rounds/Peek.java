package mien.client.rounds;

import mien.client.store.Vault;

/** Looks at what a phone is about to send, for tests that compare sums; an app has no such way. */
public final class Peek {
    private Peek() {}

    /** Returns the contribution of the round that was trained for and not settled, before any mask. */
    public static byte[] contribution(Vault rounds) {
        return Pending.load(rounds).contribution;
    }
}
