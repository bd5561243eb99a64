package mien.app;

import android.content.Context;
import java.util.Random;
import mien.app.keys.Keys;
import mien.client.Clock;
import mien.client.Device;
import mien.client.store.Folder;

/** What every screen works with: the device of Mien's on this phone, its keys, choices, and a thread to work on. */
public final class Phone {
    public final Device device;
    public final Choices choices;
    public final Work work;
    public final Owner owner = new Owner();
    final Keys keys;
    private final Folder home;

    Phone(Context context, Folder home, Keys keys) {
        this.home = home;
        this.keys = keys;
        device = new Device(home, keys.sealing(), keys.identity(), Clock.system(), new Random());
        choices = new Choices(context);
        work = new Work();
    }

    /** Returns the one of this process. */
    public static Phone of(Context context) {
        return ((App) context.getApplicationContext()).phone();
    }

    /** Returns whether this phone belongs to a fleet. */
    public boolean hasJoined() {
        return home.has("identity.json");
    }
}
