package mien.app;

import android.app.Activity;
import android.app.KeyguardManager;
import android.content.Context;
import android.content.Intent;
import android.os.SystemClock;

/** Whether the owner has answered the phone's own lock a moment ago, and the question for it. */
public final class Owner {
    /** The number of the question, as activities ask it. */
    public static final int ASKED = 4817;

    private static final long STAYS_MS = 60_000;
    private long cameAtMs = Long.MIN_VALUE / 2;

    public synchronized void came() {
        cameAtMs = SystemClock.elapsedRealtime();
    }

    private synchronized boolean isHere() {
        return SystemClock.elapsedRealtime() - cameAtMs < STAYS_MS;
    }

    /** Returns whether the phone has a lock of its own: without one whoever holds it passes for its owner. */
    static boolean hasLock(Context context) {
        return context.getSystemService(KeyguardManager.class).isDeviceSecure();
    }

    /** Returns Android's question for the phone's own lock; null where it was answered a moment ago, or there is none. */
    // Its successor cannot ask for the PIN alone before Android 11.
    @SuppressWarnings("deprecation")
    public Intent question(Context context) {
        if (isHere()) {
            return null;
        }
        return context.getSystemService(KeyguardManager.class)
                .createConfirmDeviceCredentialIntent(
                        context.getString(R.string.owner_title), context.getString(R.string.owner_text));
    }

    /** Returns whether what an activity was told is the owner's answer. */
    public boolean answered(int asked, int result) {
        boolean isOwner = asked == ASKED && result == Activity.RESULT_OK;
        if (isOwner) {
            came();
        }
        return isOwner;
    }
}
