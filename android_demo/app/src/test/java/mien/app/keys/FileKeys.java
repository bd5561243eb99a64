package mien.app.keys;

import mien.client.join.FileIdentityKeys;
import mien.client.join.IdentityKeys;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.KeyProvider;
import mien.client.store.Vault;
import javax.crypto.SecretKey;

/** The app's keys with files where a phone has AndroidKeyStore, which no JVM has. */
public final class FileKeys implements Keys {
    private final FileKeyProvider files;
    private final WrappedKeys sealing;
    private final Folder folder;

    public FileKeys(Folder folder) {
        this.folder = folder;
        files = new FileKeyProvider(folder.folder("store"));
        sealing = new WrappedKeys(folder, new Wrapping());
    }

    @Override
    public KeyProvider sealing() {
        return sealing;
    }

    @Override
    public IdentityKeys identity() {
        return new FileIdentityKeys(new Vault(folder.folder("identity"), files, "identity"));
    }

    @Override
    public void destroy() {
        sealing.destroyAll();
        new Vault(folder.folder("identity"), files, "identity").wipe();
    }

    private final class Wrapping implements WrappingKeys {
        @Override
        public SecretKey wrapping(String name) {
            return files.key("wrapping-" + name);
        }

        @Override
        public void destroyWrapping(String name) {
            files.destroy("wrapping-" + name);
        }
    }
}
