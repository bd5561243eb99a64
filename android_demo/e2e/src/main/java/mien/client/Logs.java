package mien.client;

import mien.client.rounds.LogFiles;

/** What a device saw of the log, for tests that have it begin anew; an app has no such way. */
public final class Logs {
    private Logs() {}

    public static LogFiles of(Device device) {
        return device.logFiles;
    }
}
