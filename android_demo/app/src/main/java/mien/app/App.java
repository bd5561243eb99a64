package mien.app;

import android.app.Application;
import android.content.pm.ApplicationInfo;
import android.os.StrictMode;
import mien.app.keys.AndroidKeys;
import mien.app.keys.Keys;
import mien.client.store.Folder;

/** The process: holds the one {@link Phone} that all screens and jobs share. */
public class App extends Application {
    final Deletion deletion = new Deletion();
    private Phone phone;

    /** In a build that can be debugged, Android's log names whatever waits on the main thread. */
    @Override
    public void onCreate() {
        super.onCreate();
        if ((getApplicationInfo().flags & ApplicationInfo.FLAG_DEBUGGABLE) != 0) {
            StrictMode.enableDefaults();
        }
    }

    /** Returns what this process does its work with, made at the first call. */
    final synchronized Phone phone() {
        if (phone == null) {
            phone = new Phone(this);
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
            phone.close();
        }
        phone = null;
    }
}
