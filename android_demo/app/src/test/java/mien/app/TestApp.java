package mien.app;

import mien.app.keys.FileKeys;
import mien.app.keys.Keys;
import mien.client.store.Folder;

/** The app as it is, but for where its keys live. */
public final class TestApp extends App {
    @Override
    protected Keys keys(Folder wrapped) {
        return new FileKeys(wrapped);
    }
}
