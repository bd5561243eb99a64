package mien.client.store;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.StandardOpenOption;
import java.util.EnumSet;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * Keeps other processes out of a folder as long as this one lives: two at once would overwrite one another's records. The
 * system ends it with the process, however that ends.
 */
public final class Claim {
    private static final String FILE = "in-use";

    /** Kept from being collected: a channel that is closed gives up every lock of this process on its file. */
    private final FileChannel channel;

    /** Claims a folder; throws UNREACHABLE while another process has it. */
    public Claim(Folder folder) {
        channel = locked(folder);
    }

    /** Returns an open channel; null where none can be opened: nobody is kept from leaving for want of room. */
    private static FileChannel locked(Folder folder) {
        EnumSet<StandardOpenOption> options = EnumSet.of(StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        try {
            FileChannel channel = FileChannel.open(folder.path(FILE), options, Folder.PRIVATE);
            if (isLocked(channel)) {
                return channel;
            }
            channel.close(); // while this process has no lock on it
        } catch (IOException error) {
            return null;
        }
        throw new MienException(
                ErrorCode.UNREACHABLE, "this device's folder is in use by another program; run again when it has ended");
    }

    private static boolean isLocked(FileChannel channel) throws IOException {
        try {
            return channel.tryLock() != null;
        } catch (OverlappingFileLockException ours) {
            return true;
        }
    }
}
