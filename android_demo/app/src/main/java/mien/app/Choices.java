package mien.app;

import android.content.Context;
import android.content.SharedPreferences;

/** What the owner has read, agreed to and chosen; nothing secret. */
public final class Choices {
    private static final String WELCOMED = "welcomed";
    private static final String RECOGNISES = "recognises";
    private static final String TRAINS = "trains";
    private static final String PAUSED = "paused";

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

    /** Returns what the owner agreed to for people who are enrolled from now on: whether their pictures train. */
    public boolean trains() {
        return stored.getBoolean(TRAINS, false);
    }

    /** Returns whether the owner has paused taking part. */
    public boolean paused() {
        return stored.getBoolean(PAUSED, false);
    }

    /** Remembers that the owner read what leaves the phone, and what they agreed to. */
    public void agree(boolean recognises, boolean trains) {
        stored.edit()
                .putBoolean(WELCOMED, true)
                .putBoolean(RECOGNISES, recognises)
                .putBoolean(TRAINS, trains && recognises)
                .apply();
    }

    public void pause(boolean paused) {
        stored.edit().putBoolean(PAUSED, paused).apply();
    }

    void forget() {
        stored.edit().clear().commit();
    }
}
