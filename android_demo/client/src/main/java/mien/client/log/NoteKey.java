package mien.client.log;

import java.util.Arrays;
import java.util.Base64;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;
import mien.client.wire.Texts;

/** A public key that signs notes under a name (c2sp.org/signed-note): a log's own, or that of a witness who cosigns. */
public final class NoteKey {
    private static final byte ED25519 = 1;
    private static final byte COSIGNATURE = 4;
    static final int KEY_BYTES = 32;
    static final int ID_BYTES = 4;
    private static final int NAME_HEX_DIGITS = 32;
    private static final int MOST_OF_NAME = 200;

    public final String name;
    /** Whether it cosigns with a time, as witnesses do. */
    public final boolean isWitness;

    final byte[] publicKey;

    private NoteKey(String name, byte[] publicKey, boolean isWitness) {
        if (!isName(name) || publicKey.length != KEY_BYTES) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY,
                    "a key for checkpoints has a name without spaces and 32 bytes; ask the operator");
        }
        this.name = name;
        this.publicKey = publicKey;
        this.isWitness = isWitness;
    }

    /** Returns the key of a log that sends {@code publicKey}; throws TRANSPARENCY where the origin names another key. */
    public static NoteKey ofLog(byte[] publicKey, String origin) {
        String digest = Bytes.hex(Bytes.sha256(publicKey)).substring(0, NAME_HEX_DIGITS);
        NoteKey key = new NoteKey("mien-log-" + digest, publicKey, false);
        if (!key.name.equals(origin)) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY, "the log's key is not the one that its checkpoint names; tell the operator");
        }
        return key;
    }

    /** Returns the key in a line {@code NAME+ID+KEY}; throws TRANSPARENCY. */
    public static NoteKey parse(String text) {
        String[] parts = text.trim().split("\\+", 3);
        byte[] raw = parts.length == 3 ? decoded(parts[2]) : new byte[0];
        if (raw.length != 1 + KEY_BYTES || (raw[0] != ED25519 && raw[0] != COSIGNATURE)) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY, Texts.cut(text) + " is not a key for checkpoints (NAME+ID+KEY, Ed25519)");
        }
        NoteKey key = new NoteKey(parts[0], Arrays.copyOfRange(raw, 1, raw.length), raw[0] == COSIGNATURE);
        if (!Bytes.hex(key.id()).equals(parts[1])) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY, Texts.cut(text) + " is not a key for checkpoints: its id is another key's");
        }
        return key;
    }

    /** Returns the first 4 bytes of SHA-256 over name, a newline, the kind's byte and the key. */
    byte[] id() {
        return Arrays.copyOf(Bytes.sha256(Bytes.utf8(name + "\n"), typed()), ID_BYTES);
    }

    private byte[] typed() {
        return Bytes.concat(new byte[] {isWitness ? COSIGNATURE : ED25519}, publicKey);
    }

    /** Returns the line that {@link #parse} reads. */
    @Override
    public String toString() {
        return name + "+" + Bytes.hex(id()) + "+" + Base64.getEncoder().encodeToString(typed());
    }

    static boolean isName(String name) {
        return !name.isEmpty()
                && name.length() <= MOST_OF_NAME
                && name.chars()
                        .noneMatch(
                                each ->
                                        each == '+'
                                                || each <= ' '
                                                || each == '\u0085'
                                                || Character.isSpaceChar(each)
                                                || Character.isWhitespace(each));
    }

    /** Returns the bytes of base64 with its padding; throws TRANSPARENCY for anything else. */
    static byte[] decoded(String base64) {
        try {
            if (base64.length() % 4 == 0) {
                return Base64.getDecoder().decode(base64);
            }
        } catch (IllegalArgumentException error) {
            throw Note.damaged(error);
        }
        throw Note.damaged(null);
    }
}
