package mien.client.store;

import javax.crypto.SecretKey;

/** Keys in files that can be put out of reach: then no cipher of the platform's takes them, as with a locked key store's. */
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
        return key == null || !away ? key : new Opaque();
    }

    @Override
    public void destroy(String name) {
        keys.destroy(name);
    }

    private static final class Opaque implements SecretKey {
        @Override
        public String getAlgorithm() {
            return "AES";
        }

        @Override
        public String getFormat() {
            return null;
        }

        @Override
        public byte[] getEncoded() {
            return null;
        }
    }
}
