package mien.app;

import android.app.Application;
import java.nio.file.Path;
import mien.app.keys.AndroidKeys;
import mien.app.keys.Keys;
import mien.client.store.Folder;

/** The process: holds the one {@link Phone} that all screens and jobs share. */
public class App extends Application {
    final Deletion deletion = new Deletion();
    private Phone phone;

    /** Returns what this process does its work with, made at the first call. */
    final synchronized Phone phone() {
        if (phone == null) {
            Path home = getNoBackupFilesDir().toPath().resolve("mien"); // no copy of it would open elsewhere
            phone = new Phone(this, home, keys(new Folder(home.resolve("keys"))));
        }
        return phone;
    }

    /** Returns where the keys live; a test has them in files. */
    protected Keys keys(Folder wrapped) {
        return new AndroidKeys(this, wrapped);
    }

    /** Lets go of a phone whose everything was deleted: the next call begins anew. */
    final synchronized void forget() {
        if (phone != null) {
            phone.device.close();
        }
        phone = null;
    }
}
