package mien.app.training;

import android.app.KeyguardManager;
import android.content.Context;
import android.net.ConnectivityManager;
import android.net.NetworkCapabilities;
import android.os.BatteryManager;
import android.os.PowerManager;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import mien.client.rounds.Conditions;

/** Whether this phone may train now, as Android tells it. */
final class PhoneConditions implements Conditions {
    /** What has to hold for training by night; named as the client names them. */
    enum Condition {
        CHARGING,
        UNMETERED,
        IDLE;

        String word() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** Why a step ended that somebody stopped. */
    static final String STOPPED = "stopped";

    private final Context context;
    private final Set<Condition> demanded;
    private volatile boolean stopped;

    PhoneConditions(Context context, Set<Condition> demanded) {
        this.context = context;
        this.demanded = demanded;
    }

    /** Returns what training at night waits for. */
    static PhoneConditions byNight(Context context) {
        return new PhoneConditions(context, EnumSet.allOf(Condition.class));
    }

    /** Returns what training waits for when its owner asks for it: a network that costs nothing. */
    static PhoneConditions now(Context context) {
        return new PhoneConditions(context, EnumSet.of(Condition.UNMETERED));
    }

    /** From now on the phone may not work. */
    void stop() {
        stopped = true;
    }

    boolean isStopped() {
        return stopped;
    }

    @Override
    public List<String> unmet() {
        List<String> words = new ArrayList<>();
        if (stopped) {
            words.add(STOPPED);
        }
        for (Condition each : demanded) {
            if (!holds(each)) {
                words.add(each.word());
            }
        }
        return words;
    }

    boolean holds(Condition condition) {
        switch (condition) {
            case CHARGING:
                return context.getSystemService(BatteryManager.class).isCharging();
            case UNMETERED:
                return isUnmetered();
            default:
                return !isInUse();
        }
    }

    /**
     * Android calls a phone interactive, too, that shows a screen saver on its charger, or its lock screen for a message:
     * then the lock is up, and nobody works with it.
     */
    private boolean isInUse() {
        return context.getSystemService(PowerManager.class).isInteractive()
                && !context.getSystemService(KeyguardManager.class).isKeyguardLocked();
    }

    private boolean isUnmetered() {
        ConnectivityManager network = context.getSystemService(ConnectivityManager.class);
        NetworkCapabilities has = network.getNetworkCapabilities(network.getActiveNetwork());
        return has != null && has.hasCapability(NetworkCapabilities.NET_CAPABILITY_NOT_METERED);
    }
}
