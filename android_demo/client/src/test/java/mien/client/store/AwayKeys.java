package mien.client.store;

import javax.crypto.SecretKey;
import javax.crypto.spec.SecretKeySpec;

/**
 * Keys in files that can be put out of reach: then a cipher refuses them (InvalidKeyException), as those of a locked key store;
 * for their length, which every provider on a JVM and on a phone looks at.
 */
public final class AwayKeys implements KeyProvider {
    public boolean away;
    private final FileKeyProvider keys;

    public AwayKeys(Folder folder) {
        keys = new FileKeyProvider(folder);
    }

    @Override
    public SecretKey find(String name) {
        return handle(keys.find(name));
    }

    @Override
    public SecretKey make(String name) {
        return handle(keys.make(name));
    }

    private SecretKey handle(SecretKey key) {
        return key == null || !away ? key : new SecretKeySpec(new byte[5], "AES");
    }

    @Override
    public void destroy(String name) {
        keys.destroy(name);
    }
}
