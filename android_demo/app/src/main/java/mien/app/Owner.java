package mien.app;

import android.os.SystemClock;

/** Whether the owner has answered the phone's own lock a moment ago. */
public final class Owner {
    private static final long STAYS_MS = 60_000;
    private long cameAtMs = Long.MIN_VALUE / 2;

    public synchronized void came() {
        cameAtMs = SystemClock.elapsedRealtime();
    }

    public synchronized boolean isHere() {
        return SystemClock.elapsedRealtime() - cameAtMs < STAYS_MS;
    }
}
