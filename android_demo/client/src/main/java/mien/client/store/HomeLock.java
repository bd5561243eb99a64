package mien.client.store;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * A home that belongs to one program alone: two at once would overwrite each other's people. It is given back by
 * {@link #close}, and by the system as soon as the process is gone, however it went.
 */
public final class HomeLock implements AutoCloseable {
    private static final String FILE = "lock";
    /** What this process holds: a system's locks are between processes, and end when any file of theirs is closed. */
    private static final Map<Path, FileChannel> HELD = new HashMap<>();

    private final Path file;
    /** Null where no file could be opened to lock: nobody is kept from leaving for want of room. */
    private final FileChannel channel;
    private boolean isClosed;

    /** Takes a home; throws IN_USE while somebody has it, in this process or another. */
    public HomeLock(Folder home) {
        synchronized (HELD) {
            try {
                file = home.path("").toRealPath().resolve(FILE);
            } catch (IOException error) {
                throw Folder.failed("the home cannot be found", error);
            }
            if (HELD.containsKey(file)) {
                throw inUse();
            }
            channel = locked(home);
            HELD.put(file, channel);
        }
    }

    private static FileChannel locked(Folder home) {
        try {
            FileChannel channel = home.open(FILE);
            if (channel.tryLock() != null) {
                return channel;
            }
            channel.close();
        } catch (IOException error) {
            return null;
        }
        throw inUse();
    }

    private static MienException inUse() {
        return new MienException(
                ErrorCode.IN_USE, "another program uses this home; end it, or wait until it has ended, then try again");
    }

    /** Gives the home back; again has no effect. */
    @Override
    public void close() {
        synchronized (HELD) {
            if (isClosed) {
                return;
            }
            isClosed = true;
            HELD.remove(file);
            try {
                if (channel != null) {
                    channel.close(); // its lock ends with it
                }
            } catch (IOException error) {
                throw Folder.failed("the home cannot be given back", error);
            }
        }
    }
}
