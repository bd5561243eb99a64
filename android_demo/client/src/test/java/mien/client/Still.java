package mien.client;

/** A clock that stands still until somebody sleeps. */
public final class Still implements Clock {
    private long now;

    public Still(long now) {
        this.now = now;
    }

    @Override
    public long unixMs() {
        return now;
    }

    @Override
    public long monotonicMs() {
        return now;
    }

    @Override
    public void sleep(long ms) {
        now += ms;
    }
}
