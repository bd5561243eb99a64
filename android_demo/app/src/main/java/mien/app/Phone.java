package mien.app;

import android.content.Context;
import android.os.StrictMode;
import java.nio.file.Path;
import mien.app.keys.Keys;
import mien.app.training.Training;
import mien.app.training.TrainingJob;
import mien.client.Device;
import mien.client.Status;
import mien.client.enrol.Lockout;
import mien.client.store.Folder;
import mien.client.store.Vault;

/**
 * What every screen works with: the device of Mien's on this phone, its keys, choices, and threads to work on. Made on the
 * main thread at no cost; what lies on disk and under keys is opened when it is first asked for, beside that thread.
 */
public final class Phone {
    private static final long A_DAY_MS = 24L * 60 * 60 * 1000;

    public final Choices choices;
    public final Work work = new Work();
    public final Owner owner = new Owner();
    public final Training training = new Training(this);
    private final App app;
    private Home opened;

    /** What was opened: all of it, or an error that says why not, and the next one to ask tries again. */
    static final class Home {
        final Keys keys;
        final Device device;
        final Lockout lockout;

        private Home(Path path, Keys keys) {
            Folder folder = new Folder(path);
            this.keys = keys;
            device = Device.at(path).keys(keys.sealing()).identityKeys(keys.identity()).open();
            lockout = new Lockout(new Vault(folder.folder("lockout"), keys.sealing(), "lockout"), new PhoneClock());
        }
    }

    Phone(App app) {
        this.app = app;
        choices = new Choices(app);
    }

    /** Returns the device, opened; not for the main thread. Throws what {@link Device.Builder#open} does. */
    public Device device() {
        return beside().device;
    }

    /** Returns how long faces are not looked at after too many were refused; not for the main thread. */
    public Lockout lockout() {
        return beside().lockout;
    }

    /** Returns the keys; not for the main thread. */
    Keys keys() {
        return beside().keys;
    }

    /** Tells Android's strict mode, where it is on, whoever comes here on a thread that must not wait. */
    private Home beside() {
        StrictMode.noteSlowCall("the phone's home: disk, keys and models");
        return open();
    }

    synchronized Home open() {
        if (opened == null) {
            Path path = home();
            opened = new Home(path, app.keys(new Folder(path.resolve("keys"))));
        }
        return opened;
    }

    /** Gives the home to the next one of this process. */
    synchronized void close() {
        if (opened != null) {
            opened.device.close();
        }
    }

    /**
     * Brings what depends on agreements into line with them, the owner's and that of anybody enrolled: whether training is planned, whether the gallery opens
     * while the phone is locked, and, as soon as it answers, what the coordinator knows.
     */
    public void settle(Context context) {
        Status status = device().status();
        boolean trains = status.joined && status.numAgreed > 0 && choices.letsTrain();
        TrainingJob.plan(context, trains);
        keys().openWhileLocked(trains);
        if (status.stillToTell) {
            work.ask(() -> device().tellParticipation(), told -> {}, error -> {});
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
            work.ask(() -> device().update(), changed -> {}, error -> {});
        }
    }

    /** Returns the one of this process. */
    public static Phone of(Context context) {
        return ((App) context.getApplicationContext()).phone();
    }

    /** Returns the folder of everything that this app keeps: no copy of it would open elsewhere. */
    Path home() {
        return app.getNoBackupFilesDir().toPath().resolve("mien");
    }
}
