package mien.app;

import android.content.Context;
import android.content.SharedPreferences;
import java.util.Collections;
import java.util.EnumSet;
import java.util.Set;
import mien.client.rounds.Outcome;
import mien.client.secagg.Profile;
import mien.client.tasks.Agreement;

/** What the owner has read, agreed to and chosen; nothing secret. */
public final class Choices {
    private static final String WELCOMED = "welcomed";
    private static final String RECOGNISES = "recognises";
    private static final String TRAINS = "trains";
    private static final String PAUSED = "paused";

    private static final String NEXT_TRY = "next_try_ms";
    private static final String LOOKED = "looked_ms";

    private final SharedPreferences stored;

    Choices(Context context) {
        stored = context.getSharedPreferences("choices", Context.MODE_PRIVATE);
    }

    /** Returns whether the owner has read what leaves the phone. */
    public boolean welcomed() {
        return stored.getBoolean(WELCOMED, false);
    }

    /** Returns whether the owner agreed that faces are recognised on this phone; nobody is enrolled before. */
    public boolean recognises() {
        return stored.getBoolean(RECOGNISES, false);
    }

    /** Returns whether the owner agreed that this phone trains; with the pictures of those alone who agree themselves. */
    public boolean trains() {
        return stored.getBoolean(TRAINS, false);
    }

    /** Returns whether the owner has paused taking part. */
    public boolean paused() {
        return stored.getBoolean(PAUSED, false);
    }

    /** Returns whether the owner lets this phone train: they agreed to it, and have not paused it. */
    public boolean letsTrain() {
        return trains() && !paused();
    }

    /** Remembers that the owner read what leaves the phone, and what they agreed to. */
    public void agree(boolean recognises, boolean trains) {
        stored.edit()
                .putBoolean(WELCOMED, true)
                .putBoolean(RECOGNISES, recognises)
                .putBoolean(TRAINS, trains && recognises)
                .putBoolean(PAUSED, paused() && trains())
                .apply();
    }

    /** Remembers that the owner lets this phone train from now on. */
    public void letTrain() {
        stored.edit().putBoolean(TRAINS, true).putBoolean(PAUSED, false).apply();
    }

    /** Remembers that the owner has it pause; what they agreed to stays. */
    public void pause() {
        stored.edit().putBoolean(PAUSED, true).apply();
    }

    /** Returns what the owner chose for a limit, or the client's default. */
    public int of(Limit limit) {
        return stored.getInt(limit.key, limit.standard());
    }

    public void demand(Limit limit, int choice) {
        stored.edit().putInt(limit.key, choice).apply();
    }

    /** Returns what the owner agreed to, as the client checks it. */
    public Agreement agreement() {
        int epsilon = of(Limit.EPSILON);
        Set<String> reveals =
                of(Limit.MOMENTS) == 1 ? Collections.singleton(Agreement.CLASS_MOMENT) : Collections.<String>emptySet();
        return new Agreement(
                        of(Limit.FEWEST),
                        EnumSet.of(Profile.MALICIOUS_SERVER),
                        reveals,
                        of(Limit.PER_MODEL),
                        of(Limit.PER_DAY))
                .withPeers(of(Limit.PEER_AGE), of(Limit.ATTESTED) == 1)
                .withMaxEpsilon(epsilon == 0 ? Double.POSITIVE_INFINITY : epsilon);
    }

    /**
     * Returns before when the coordinator does not want to be asked again, in milliseconds since 1970; 0: any time. A time that
     * is further away than any pause is one by a clock that was wrong, and no reason to wait.
     */
    public long nextTryMs() {
        long next = stored.getLong(NEXT_TRY, 0);
        return next - System.currentTimeMillis() > Outcome.LONGEST_PAUSE_MS ? 0 : next;
    }

    /** Remembers that time, at most a day from now: nobody who names a later one keeps this phone from its fleet for good. */
    public void tryAgainAt(long unixMs) {
        stored.edit().putLong(NEXT_TRY, Math.min(unixMs, System.currentTimeMillis() + Outcome.LONGEST_PAUSE_MS)).apply();
    }

    /** Returns when this phone last looked for a newer model. */
    long lookedMs() {
        return stored.getLong(LOOKED, 0);
    }

    void looked(long unixMs) {
        stored.edit().putLong(LOOKED, unixMs).apply();
    }

    void forget() {
        stored.edit().clear().commit();
    }
}
