package mien.client.server;

import io.grpc.StatusRuntimeException;
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
 * One blob on its way into a file that its hash names: it goes on where it stopped, also after the program was stopped,
 * and the file appears once it is whole and is what its hash says.
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

    private final Source source;
    private final Retry retry;
    private final Blob blob;
    private final Folder folder;
    private final String what;
    private final Runnable mayGoOn;

    Downloading(Source source, Retry retry, Blob blob, Folder folder, String what, Runnable mayGoOn) {
        this.mayGoOn = mayGoOn;
        this.source = source;
        this.retry = retry;
        this.blob = blob;
        this.folder = folder;
        this.what = what;
    }

    /** Throws what was given to be asked before each piece does, UNREACHABLE where the server stays away, CORRUPT_DATA where it sends something else twice. */
    void run() {
        for (int tries = 0; tries < 2; tries++) {
            receive();
            byte[] data = folder.readPart(blob.sha256);
            if (Bytes.hex(Bytes.sha256(data)).equals(blob.sha256)) {
                folder.write(blob.sha256, data);
                return;
            }
            folder.delete(blob.sha256 + Folder.PART);
        }
        throw new MienException(ErrorCode.CORRUPT_DATA, what + " came damaged twice; try later, or tell the operator");
    }

    private void receive() {
        if (folder.partSize(blob.sha256) > blob.sizeBytes) {
            folder.delete(blob.sha256 + Folder.PART);
        }
        while (folder.partSize(blob.sha256) < blob.sizeBytes) {
            mayGoOn.run();
            MienException error = new MienException(ErrorCode.UNREACHABLE, "only a part came of " + what + "; retry");
            try (Pieces pieces = source.open(blob, folder.partSize(blob.sha256))) {
                while (pieces.chunks.hasNext()) {
                    append(pieces.chunks.next());
                    retry.progress();
                    mayGoOn.run();
                }
            } catch (StatusRuntimeException failed) {
                error = Statuses.meaning(failed, "whoever sends " + what);
            }
            if (folder.partSize(blob.sha256) < blob.sizeBytes) {
                retry.pause(error);
            }
        }
    }

    private void append(DataChunk chunk) {
        byte[] piece = chunk.getData().toByteArray();
        long here = folder.partSize(blob.sha256);
        if (chunk.getOffset() != here || piece.length == 0 || here + piece.length > blob.sizeBytes) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "other pieces came of " + what + " than were asked for; retry");
        }
        folder.append(blob.sha256, piece);
    }
}
