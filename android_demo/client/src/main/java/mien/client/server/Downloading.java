package mien.client.server;

import io.grpc.StatusRuntimeException;
import java.io.ByteArrayOutputStream;
import java.util.Iterator;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.Blob;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Retry;
import mien.client.wire.Statuses;
import mien.v1.Common.DataChunk;

/**
 * One blob on its way into a file that its hash names, or into memory: it goes on where it stopped, in a file also after
 * the program was stopped, and is there once it is whole and is what its hash says.
 */
final class Downloading {
    /** A stream that was opened; closing it tells the server not to go on. */
    static final class Pieces implements AutoCloseable {
        private final Iterator<DataChunk> chunks;
        private final Runnable end;

        Pieces(Iterator<DataChunk> chunks, Runnable end) {
            this.chunks = chunks;
            this.end = end;
        }

        @Override
        public void close() {
            end.run();
        }
    }

    /** Opens a blob's stream from a byte on. */
    interface Source {
        Pieces open(Blob blob, long offset);
    }

    /** What came so far. */
    private interface Part {
        long size();

        void append(byte[] piece);

        boolean isWhole();

        void delete();
    }

    private final Source source;
    private final Retry retry;
    private final Blob blob;
    private final Part part;
    private final String what;
    private final Runnable mayGoOn;

    private Downloading(Source source, Retry retry, Blob blob, Part part, String what, Runnable mayGoOn) {
        this.mayGoOn = mayGoOn;
        this.source = source;
        this.retry = retry;
        this.blob = blob;
        this.part = part;
        this.what = what;
    }

    /**
     * Fetches a blob into a folder. Throws what {@code mayGoOn} does, which is asked before each piece, UNREACHABLE where
     * the server stays away, CORRUPT_DATA where it sends something else twice.
     */
    static void toFile(Source source, Retry retry, Blob blob, Folder folder, String what, Runnable mayGoOn) {
        new Downloading(source, retry, blob, inFile(folder, blob.sha256), what, mayGoOn).run();
        folder.finish(blob.sha256);
    }

    /**
     * Returns a blob that is on no disk at any time. Throws CORRUPT_DATA for one of more than {@code most} bytes, before any
     * are fetched; other errors as {@link #toFile}.
     */
    static byte[] toMemory(Source source, Retry retry, Blob blob, long most, String what, Runnable mayGoOn) {
        if (blob.sizeBytes > most) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    what + " was announced with " + blob.sizeBytes + " bytes, and the task can need " + most
                            + "; tell the operator");
        }
        ByteArrayOutputStream whole = new ByteArrayOutputStream((int) blob.sizeBytes);
        new Downloading(source, retry, blob, inMemory(whole, blob.sha256), what, mayGoOn).run();
        return whole.toByteArray();
    }

    private static Part inFile(Folder folder, String name) {
        return new Part() {
            @Override
            public long size() {
                return folder.partSize(name);
            }

            @Override
            public void append(byte[] piece) {
                folder.append(name, piece);
            }

            @Override
            public boolean isWhole() {
                return folder.isPartWhole(name, name);
            }

            @Override
            public void delete() {
                folder.delete(name + Folder.PART);
            }
        };
    }

    private static Part inMemory(ByteArrayOutputStream whole, String sha256) {
        return new Part() {
            @Override
            public long size() {
                return whole.size();
            }

            @Override
            public void append(byte[] piece) {
                whole.write(piece, 0, piece.length);
            }

            @Override
            public boolean isWhole() {
                return Bytes.hex(Bytes.sha256(whole.toByteArray())).equals(sha256);
            }

            @Override
            public void delete() {
                whole.reset();
            }
        };
    }

    private void run() {
        for (int tries = 0; tries < 2; tries++) {
            receive();
            if (part.isWhole()) {
                return;
            }
            part.delete();
        }
        throw new MienException(ErrorCode.CORRUPT_DATA, what + " came damaged twice; try later, or tell the operator");
    }

    private void receive() {
        if (part.size() > blob.sizeBytes) {
            part.delete();
        }
        while (part.size() < blob.sizeBytes) {
            mayGoOn.run();
            MienException error = new MienException(ErrorCode.UNREACHABLE, "only a part came of " + what + "; retry");
            try (Pieces pieces = source.open(blob, part.size())) {
                while (pieces.chunks.hasNext()) {
                    append(pieces.chunks.next());
                    retry.progress();
                    mayGoOn.run();
                }
            } catch (StatusRuntimeException failed) {
                error = Statuses.meaning(failed, "whoever sends " + what);
            }
            if (part.size() < blob.sizeBytes) {
                retry.pause(error);
            }
        }
    }

    private void append(DataChunk chunk) {
        byte[] piece = chunk.getData().toByteArray();
        long here = part.size();
        if (chunk.getOffset() != here || piece.length == 0 || here + piece.length > blob.sizeBytes) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "other pieces came of " + what + " than were asked for; retry");
        }
        part.append(piece);
    }
}
