package mien.client.log;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/** Cosignatures that a device demands besides the registrar's: of so many of these further witnesses. */
public final class Quorum {
    public static final Quorum NONE = new Quorum(Collections.<String>emptyList(), 0);
    private static final int MAX_WITNESSES = 16;

    public final int needed;
    private final List<NoteKey> keys = new ArrayList<>();

    /**
     * Takes keys as {@code NAME+ID+KEY}; {@code needed} 0 is all of them. Throws TRANSPARENCY for keys that no witness has,
     * and a number that they cannot reach.
     */
    public Quorum(List<String> lines, int needed) {
        Set<String> different = new HashSet<>();
        boolean isPossible = lines.size() <= MAX_WITNESSES && needed >= 0 && needed <= lines.size();
        for (String line : lines) {
            NoteKey key = NoteKey.parse(line);
            keys.add(key);
            isPossible &= key.isWitness && different.add(Bytes.hex(key.publicKey));
        }
        if (!isPossible) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY,
                    needed + " of " + lines.size() + " further witnesses of the log cannot cosign; ask the operator");
        }
        this.needed = needed == 0 ? keys.size() : needed;
    }

    /** Returns the keys as {@code NAME+ID+KEY}. */
    public List<String> lines() {
        List<String> lines = new ArrayList<>();
        for (NoteKey key : keys) {
            lines.add(key.toString());
        }
        return lines;
    }

    /** Returns whether no further signature is asked for. */
    public boolean isEmpty() {
        return keys.isEmpty();
    }

    /** Returns how many cosignatures a note lacks; throws TRANSPARENCY for one that does not hold. */
    public int missing(Note note) {
        int there = 0;
        for (NoteKey key : keys) {
            if (note.hasSignatureOf(key)) {
                note.check(key);
                there++;
            }
        }
        return Math.max(needed - there, 0);
    }
}
