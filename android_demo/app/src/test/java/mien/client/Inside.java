package mien.client;

import mien.client.people.Gallery;
import mien.client.rounds.Journal;
import mien.client.rounds.LogFiles;

/** What a device keeps, for tests that put it there past the device's own rules; an app has no such way. */
public final class Inside {
    private Inside() {}

    public static Gallery gallery(Device device) {
        return device.gallery;
    }

    public static Journal journal(Device device) {
        return device.journal;
    }

    public static LogFiles logFiles(Device device) {
        return device.logFiles;
    }
}
