package mien.client.enrol;

import mien.client.Clock;

/** Two clocks that a test holds, apart from one another. */
final class HeldClock implements Clock {
    long unixMs = 1_800_000_000_000L;
    long monotonicMs = 5_000_000;

    @Override
    public long unixMs() {
        return unixMs;
    }

    @Override
    public long monotonicMs() {
        return monotonicMs;
    }

    @Override
    public void sleep(long ms) {
        unixMs += ms;
        monotonicMs += ms;
    }
}
