package mien.app;

import android.content.Context;
import java.nio.file.Path;
import java.util.Random;
import mien.app.keys.Keys;
import mien.app.training.Training;
import mien.app.training.TrainingJob;
import mien.client.Clock;
import mien.client.Device;
import mien.client.Status;
import mien.client.enrol.Lockout;
import mien.client.store.Folder;
import mien.client.store.Vault;

/** What every screen works with: the device of Mien's on this phone, its keys, choices, and a thread to work on. */
public final class Phone {
    private static final long A_DAY_MS = 24L * 60 * 60 * 1000;

    public final Device device;
    public final Choices choices;
    public final Work work;
    public final Owner owner = new Owner();
    public final Training training = new Training(this);
    /** How long faces are not looked at after too many were refused. */
    public final Lockout lockout;
    final Keys keys;
    private final Path home;

    Phone(Context context, Path home, Keys keys) {
        this.home = home;
        this.keys = keys;
        Folder folder = new Folder(home);
        device = new Device(folder, keys.sealing(), keys.identity(), Clock.system(), new Random());
        choices = new Choices(context);
        work = new Work();
        lockout = new Lockout(new Vault(folder.folder("lockout"), keys.sealing(), "lockout"), new PhoneClock());
    }

    /**
     * Brings what depends on agreements into line with them, the owner's and that of anybody enrolled: whether training is planned, whether the gallery opens
     * while the phone is locked, and, as soon as it answers, what the coordinator knows.
     */
    public void settle(Context context) {
        Status status = device.status();
        boolean trains = status.joined && status.numAgreed > 0 && choices.letsTrain();
        TrainingJob.plan(context, trains);
        keys.openWhileLocked(trains);
        if (status.stillToTell) {
            work.ask(device::tellParticipation, told -> {}, error -> {});
        }
    }

    /**
     * Has a newer model fetched and all templates made anew with it, at most once a day and over a network that costs
     * nothing. What fails is left to another day, or to Settings, where its owner sees why.
     */
    void lookForModel(Context context) {
        long now = System.currentTimeMillis();
        if (now - choices.lookedMs() >= A_DAY_MS && Training.mayFetch(context)) {
            choices.looked(now);
            work.ask(device::update, changed -> {}, error -> {});
        }
    }

    /** Returns the one of this process. */
    public static Phone of(Context context) {
        return ((App) context.getApplicationContext()).phone();
    }

    /** Returns the folder of everything that this app keeps. */
    Path home() {
        return home;
    }
}
