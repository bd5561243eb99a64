package mien.app;

import android.content.ComponentName;
import android.content.Context;
import android.content.Intent;

/** Screens by name, for the ways between them. */
public enum Places {
    ENROL("enrol.EnrolActivity"),
    VERIFY("verify.VerifyActivity"),
    SCAN("scan.ScanActivity");

    private final String name;

    Places(String name) {
        this.name = "mien.app." + name;
    }

    /** Returns whether this version of the app has it. */
    public boolean exists() {
        try {
            Class.forName(name);
            return true;
        } catch (ClassNotFoundException missing) {
            return false;
        }
    }

    public Intent from(Context context) {
        return new Intent().setComponent(new ComponentName(context, name));
    }
}
