package mien.client.log;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Pattern;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;
import org.bouncycastle.math.ec.rfc8032.Ed25519;

/** A checkpoint of a log as a signed note (c2sp.org/signed-note, /tlog-checkpoint), with signatures nobody has checked. */
public final class Note {
    public static final int MAX_BYTES = 16 * 1024;
    private static final int MAX_SIGNATURES = 32;
    private static final int TIME_BYTES = 8;
    private static final String DASH = "\u2014 ";
    private static final Pattern NUMBER = Pattern.compile("0|[1-9][0-9]{0,15}");

    /** Who signed by their own account, and 4 bytes of key id with what follows. */
    private static final class Signature {
        final String name;
        final byte[] raw;

        Signature(String line) {
            int space = line.indexOf(' ', DASH.length());
            if (!line.startsWith(DASH) || space < 0) {
                throw damaged(null);
            }
            name = line.substring(DASH.length(), space);
            raw = NoteKey.decoded(line.substring(space + 1));
            if (!NoteKey.isName(name) || raw.length <= NoteKey.ID_BYTES) {
                throw damaged(null);
            }
        }

        boolean isOf(NoteKey key) {
            return name.equals(key.name) && Arrays.equals(Arrays.copyOf(raw, NoteKey.ID_BYTES), key.id());
        }
    }

    /** Names the log's very key. */
    public final String origin;

    public final long size;
    public final byte[] root;
    private final String text;
    private final List<Signature> unverified = new ArrayList<>();

    /** Throws TRANSPARENCY for what is no signed checkpoint. */
    public Note(String note) {
        int end = note.lastIndexOf("\n\n");
        boolean isNote =
                end >= 0
                        && end + 2 < note.length()
                        && note.endsWith("\n")
                        && Bytes.utf8(note).length <= MAX_BYTES
                        && note.chars().noneMatch(each -> each < ' ' && each != '\n');
        if (!isNote) {
            throw damaged(null);
        }
        text = note.substring(0, end + 1);
        String[] rows = note.substring(end + 2, note.length() - 1).split("\n", -1);
        if (rows.length > MAX_SIGNATURES) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY,
                    "a checkpoint carries " + rows.length + " signatures; at most " + MAX_SIGNATURES + " are read");
        }
        for (String row : rows) {
            unverified.add(new Signature(row));
        }
        String[] lines = text.split("\n", -1); // what stands in further lines nobody reads here
        if (lines.length < 4 || !NoteKey.isName(lines[0]) || !NUMBER.matcher(lines[1]).matches()) {
            throw damaged(null);
        }
        origin = lines[0];
        size = Long.parseLong(lines[1]);
        root = NoteKey.decoded(lines[2]);
        if (size > Merkle.MAX_SIZE || root.length != Merkle.HASH_BYTES) {
            throw damaged(null);
        }
    }

    /** Returns whether a signature bears a key's name; nobody has checked it. */
    public boolean isSaidToBeSignedBy(NoteKey key) {
        return unverified.stream().anyMatch(each -> each.name.equals(key.name));
    }

    /** Returns whether a signature bears a key's name and id: one by a witness's next key does not. */
    boolean hasSignatureOf(NoteKey key) {
        return unverified.stream().anyMatch(each -> each.isOf(key));
    }

    /** Returns the Unix time of a witness's cosignature that holds, 0 of a log's own; throws TRANSPARENCY. */
    public long check(NoteKey key) {
        for (Signature each : unverified) {
            if (each.isOf(key)) {
                return checked(Arrays.copyOfRange(each.raw, NoteKey.ID_BYTES, each.raw.length), key);
            }
        }
        throw new MienException(ErrorCode.TRANSPARENCY, "the checkpoint is not signed by " + key.name);
    }

    private long checked(byte[] signature, NoteKey key) {
        int before = key.isWitness ? TIME_BYTES : 0;
        long unixS = 0;
        String message = text;
        if (key.isWitness && signature.length >= TIME_BYTES) {
            for (int i = 0; i < TIME_BYTES; i++) {
                unixS = unixS << 8 | signature[i] & 0xff;
            }
            message = "cosignature/v1\ntime " + Long.toUnsignedString(unixS) + "\n" + text;
        }
        byte[] signed = Bytes.utf8(message);
        boolean holds =
                signature.length == before + Ed25519.SIGNATURE_SIZE
                        && Ed25519.verify(signature, before, key.publicKey, 0, signed, 0, signed.length);
        if (!holds) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY,
                    "the checkpoint's signature by " + key.name + " does not hold; tell the operator");
        }
        return unixS;
    }

    static MienException damaged(Throwable cause) {
        return new MienException(
                ErrorCode.TRANSPARENCY, "what was sent is not a signed checkpoint; tell the operator", cause);
    }
}
