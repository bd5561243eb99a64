package mien.client.model;

import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/** A blob to fetch: its SHA-256 in lower-case hex, and its length. */
public final class Blob {
    public final String sha256;
    public final long sizeBytes;

    /** Names bytes by their SHA-256 in hex and their number. */
    public Blob(String sha256, long sizeBytes) {
        this.sha256 = sha256;
        this.sizeBytes = sizeBytes;
        if (!Bytes.isSha256(sha256) || sizeBytes < 0) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "a manifest names a file that cannot be; tell the operator");
        }
    }

    /** Returns whether both name the same bytes. */
    public boolean isSame(Blob other) {
        return other != null && sha256.equals(other.sha256) && sizeBytes == other.sizeBytes;
    }
}
