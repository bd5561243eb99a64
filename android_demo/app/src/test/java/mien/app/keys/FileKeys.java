package mien.app.keys;

import javax.crypto.SecretKey;
import mien.client.MienException;
import mien.client.join.FileIdentityKeys;
import mien.client.join.IdentityKeys;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.KeyProvider;
import mien.client.store.Vault;

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
    public void openWhileLocked(boolean opens) {
        sealing.openGallery(opens ? Opens.ALWAYS : Opens.WHILE_UNLOCKED);
    }

    @Override
    public void destroy() {
        for (String file : folder.folder("store").names()) {
            folder.folder("store").delete(file);
        }
    }

    private final class Wrapping implements WrappingKeys {
        @Override
        public SecretKey find(String name, Opens opens) {
            return files.find("wrapping-" + opens.named(name));
        }

        @Override
        public SecretKey make(String name, Opens opens) {
            return files.make("wrapping-" + opens.named(name));
        }

        @Override
        public void destroy(String name, Opens opens) {
            files.destroy("wrapping-" + opens.named(name));
        }

        @Override
        public boolean keepUnlockedKeys() {
            return true;
        }

        @Override
        public MienException meaning(Throwable failure) {
            return Faults.meaning(failure, false);
        }
    }
}
