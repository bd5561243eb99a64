package mien.app.keys;

import android.content.Context;
import mien.client.join.IdentityKeys;
import mien.client.store.Folder;
import mien.client.store.KeyProvider;

/** Keys in AndroidKeyStore: they are made in the phone's hardware where it has some, and no program reads them. */
public final class AndroidKeys implements Keys {
    private final WrappedKeys sealing;
    private final Hardware hardware;

    public AndroidKeys(Context context, Folder wrapped) {
        hardware = new Hardware(context);
        sealing = new WrappedKeys(wrapped, hardware);
    }

    @Override
    public KeyProvider sealing() {
        return sealing;
    }

    @Override
    public IdentityKeys identity() {
        return hardware;
    }

    @Override
    public void openWhileLocked(boolean opens) {
        sealing.openGallery(opens ? Opens.ALWAYS : Opens.WHILE_UNLOCKED);
    }

    @Override
    public void destroy() {
        hardware.destroyAll();
    }
}
