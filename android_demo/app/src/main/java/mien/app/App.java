package mien.app;

import android.app.Application;
import mien.app.keys.AndroidKeys;
import mien.app.keys.Keys;
import mien.client.store.Folder;

/** The process: holds the one {@link Phone} that all screens and jobs share. */
public class App extends Application {
    private Phone phone;

    /** Returns what this process does its work with, made at the first call. */
    final synchronized Phone phone() {
        if (phone == null) {
            Folder home = new Folder(getNoBackupFilesDir().toPath().resolve("mien"));
            phone = new Phone(this, home, keys(home.folder("keys")));
        }
        return phone;
    }

    /** Returns where the keys live; a test has them in files. */
    protected Keys keys(Folder wrapped) {
        return new AndroidKeys(this, wrapped);
    }
}
