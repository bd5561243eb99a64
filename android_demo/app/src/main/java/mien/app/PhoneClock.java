package mien.app;

import android.os.SystemClock;
import mien.client.Clock;

/** The phone's clocks; the monotonic one counts from its start, and while it sleeps. */
final class PhoneClock implements Clock {
    @Override
    public long unixMs() {
        return System.currentTimeMillis();
    }

    @Override
    public long monotonicMs() {
        return SystemClock.elapsedRealtime();
    }

    @Override
    public void sleep(long ms) {
        Clock.system().sleep(ms);
    }
}
