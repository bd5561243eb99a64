package mien.client.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/** A private folder whose files appear whole, on stable storage, or not at all. */
public final class Folder {
    /** Ends the name of a file that is not finished. */
    public static final String PART = ".part";
    private static final FileAttribute<Set<PosixFilePermission>> PRIVATE =
            PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"));
    private final Path path;

    /** Takes a folder, which is made where there is none, for this user alone. */
    public Folder(Path path) {
        this.path = path;
        for (Path at = path.toAbsolutePath(); at != null; at = at.getParent()) {
            if (Files.isRegularFile(at)) {
                throw new MienException(
                        ErrorCode.CONFIG, "there is a file where a folder is to be; name another folder, or move the file");
            }
        }
        try {
            Files.createDirectories(path, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
        } catch (IOException error) {
            throw failed("the folder cannot be made", error);
        }
    }

    /** Returns a folder inside, made where there is none. */
    public Folder folder(String name) {
        return new Folder(path.resolve(name));
    }

    /** Returns where a file is, or would be. */
    public Path path(String name) {
        return path.resolve(name);
    }

    /** Returns whether a file is here. */
    public boolean has(String name) {
        return Files.exists(path.resolve(name));
    }

    /** Returns whether a file has nothing in it, as a mark. */
    boolean isEmpty(String name) {
        try {
            return Files.size(path.resolve(name)) == 0;
        } catch (IOException error) {
            throw failed(name + " cannot be read", error);
        }
    }

    /** Returns a file's bytes, null where it does not exist. */
    public byte[] read(String name) {
        try {
            return has(name) ? whole(() -> Files.readAllBytes(path.resolve(name))) : null;
        } catch (IOException error) {
            throw failed(name + " cannot be read", error);
        }
    }

    /**
     * Returns a file's bytes where they lie, which the system reads when they are used; null where it does not exist. Where
     * it cannot be mapped (no room among a small processor's addresses, a file system that maps none) it is read.
     */
    public ByteBuffer map(String name) {
        if (!has(name)) {
            return null;
        }
        try {
            return whole(() -> mapped(path.resolve(name)));
        } catch (IOException error) {
            throw failed(name + " cannot be read", error);
        }
    }

    private static ByteBuffer mapped(Path file) throws IOException {
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
            try {
                return channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
            } catch (ClosedByInterruptException error) {
                throw error;
            } catch (IOException error) {
                return readWhole(channel);
            }
        }
    }

    /** Reads a file outside of Java's memory, as what is mapped is. */
    private static ByteBuffer readWhole(FileChannel channel) throws IOException {
        ByteBuffer data = ByteBuffer.allocateDirect(Math.toIntExact(channel.size()));
        while (data.hasRemaining() && channel.read(data, data.position()) >= 0) {
            continue;
        }
        data.flip();
        return data.asReadOnlyBuffer();
    }

    /** Returns whether a file is here and has that hash. */
    public boolean hasWhole(String name, String sha256) {
        ByteBuffer data = map(name);
        return data != null && Bytes.hex(Bytes.sha256(data)).equals(sha256);
    }

    /** Stores a file: after a crash it is the old one or the new one. */
    public void write(String name, byte[] data) {
        Path part = part(name);
        try {
            Files.deleteIfExists(part);
            Files.createFile(part, PRIVATE);
            put(part, 0, data);
            force(part, StandardOpenOption.WRITE);
            Files.move(part, path.resolve(name), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
            sync();
        } catch (IOException error) {
            deleteQuietly(part);
            throw failed(name + " cannot be stored", error);
        }
    }

    /** Opens a file to write to, made where it is not there. */
    FileChannel open(String name) throws IOException {
        Set<StandardOpenOption> options = EnumSet.of(StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        return FileChannel.open(path.resolve(name), options, PRIVATE);
    }

    /** Leaves a file with nothing in it, which takes no room; returns whether that could be done. */
    public boolean tryEmpty(String name) {
        Set<StandardOpenOption> options =
                EnumSet.of(StandardOpenOption.CREATE, StandardOpenOption.WRITE, StandardOpenOption.TRUNCATE_EXISTING);
        try {
            FileChannel.open(path.resolve(name), options, PRIVATE).close();
            sync();
            return true;
        } catch (IOException error) {
            return false;
        }
    }

    private static void deleteQuietly(Path part) {
        try {
            Files.deleteIfExists(part);
        } catch (IOException error) {
            // The write that failed says more; the next one of this name removes it.
        }
    }

    private Path part(String name) {
        return path.resolve(name + PART);
    }

    /** Returns how many bytes of a file that is not finished are here. */
    public long partSize(String name) {
        try {
            return Files.exists(part(name)) ? Files.size(part(name)) : 0;
        } catch (IOException error) {
            throw failed(name + " cannot be read", error);
        }
    }

    /** Adds bytes to a file that is not finished; what is there of it after a crash may be used, once it is checked. */
    public void append(String name, byte[] data) {
        try {
            put(part(name), partSize(name), data);
        } catch (IOException error) {
            throw failed(name + " cannot be stored", error);
        }
    }

    /** Returns whether what is here of a file that is not finished has that hash, which is all of it then. */
    public boolean isPartWhole(String name, String sha256) {
        return hasWhole(name + PART, sha256);
    }

    /** Says that a file is finished: from here on it is on stable storage under its name. */
    public void finish(String name) {
        Path part = part(name);
        try {
            force(part, StandardOpenOption.WRITE);
            Files.move(part, path.resolve(name), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
            sync();
        } catch (IOException error) {
            throw failed(name + " cannot be stored", error);
        }
    }

    /** Drops what is here of files that are not finished. */
    public void deleteParts() {
        deletePartsBut(Collections.emptySet());
    }

    /** Drops what is here of files that are not finished, but of those. */
    public void deletePartsBut(Set<String> kept) {
        for (String name : names(true)) {
            if (name.endsWith(PART) && !kept.contains(name.substring(0, name.length() - PART.length()))) {
                delete(name);
            }
        }
    }

    /** Gives a file another name, which takes no room: after a crash it has the one or the other. */
    public void rename(String name, String to) {
        try {
            Files.move(path.resolve(name), path.resolve(to), StandardCopyOption.ATOMIC_MOVE);
            sync();
        } catch (IOException error) {
            throw failed(name + " cannot be renamed", error);
        }
    }

    /** Deletes a file for good, also over a crash; one that is not there is no error. */
    public void delete(String name) {
        try {
            if (Files.deleteIfExists(path.resolve(name))) {
                sync();
            }
        } catch (IOException error) {
            throw failed(name + " cannot be removed", error);
        }
    }

    /** Returns the names of its finished files, in order. */
    public List<String> names() {
        return names(false);
    }

    private List<String> names(boolean parts) {
        List<String> names = new ArrayList<>();
        try (DirectoryStream<Path> files = Files.newDirectoryStream(path)) {
            for (Path file : files) {
                String name = file.getFileName().toString();
                if (Files.isRegularFile(file) && (parts || !name.endsWith(PART))) {
                    names.add(name);
                }
            }
        } catch (IOException error) {
            throw failed("the folder cannot be listed", error);
        }
        Collections.sort(names);
        return names;
    }

    private void sync() throws IOException {
        force(path, StandardOpenOption.READ);
    }

    private static void force(Path file, StandardOpenOption option) throws IOException {
        whole(
                () -> {
                    try (FileChannel channel = FileChannel.open(file, option)) {
                        channel.force(true);
                    }
                    return true;
                });
    }

    /** Writes bytes into a file from a place on, the same ones however often it has to begin. */
    private static void put(Path file, long at, byte[] data) throws IOException {
        Set<StandardOpenOption> options = EnumSet.of(StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        whole(
                () -> {
                    try (FileChannel channel = FileChannel.open(file, options, PRIVATE)) {
                        ByteBuffer buffer = ByteBuffer.wrap(data);
                        while (buffer.hasRemaining()) {
                            channel.write(buffer, at + buffer.position());
                        }
                    }
                    return true;
                });
    }

    /** Something done to a file, which may be done again. */
    private interface Access<T> {
        T run() throws IOException;
    }

    /**
     * Does it to the end also on a thread that is being stopped, whose interrupt would close the file in the midst: a disk
     * keeps nobody waiting. The thread stays interrupted.
     */
    private static <T> T whole(Access<T> access) throws IOException {
        boolean interrupted = Thread.interrupted();
        try {
            while (true) {
                try {
                    return access.run();
                } catch (ClosedByInterruptException error) {
                    Thread.interrupted();
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    static MienException failed(String what, IOException error) {
        // A file's name may hold any of the words that are looked for.
        boolean isOfFile = error instanceof FileSystemException;
        boolean isFull = isFull(String.valueOf(isOfFile ? ((FileSystemException) error).getReason() : error.getMessage()));
        String help = isFull ? "make room" : "see that it is there and may be used";
        return new MienException(
                isFull ? ErrorCode.DISK_FULL : ErrorCode.DATABASE,
                what + " (" + error.getClass().getSimpleName() + "); " + help + ", then try again",
                error);
    }

    /** No space, beyond a quota, or beyond what a file may have: Java tells them apart by the system's words alone. */
    private static boolean isFull(String words) {
        return words.contains("space") || words.contains("quota") || words.contains("too large");
    }
}
