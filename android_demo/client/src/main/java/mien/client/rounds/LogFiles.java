package mien.client.rounds;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.log.Note;
import mien.client.log.NoteKey;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;

/** What a device saw last of the log of rounds, sealed, and the evidence of lies about it, which anybody may read. */
public final class LogFiles {
    public static final String EVIDENCE = "log-evidence.json";
    private static final String RECORD = "seen";
    private static final String WHAT = "the evidence of lies about the log";
    private static final int MOST_PIECES = 20;
    /** As much as a phone's apps can hand one another at once. */
    private static final int MOST_BYTES = 1 << 18;

    /** The newest checkpoint that this device took, its log's key in hex, and when the registrar last signed one. */
    static final class Seen {
        final String note;
        final String logKey;
        final long cosignedUnixS;

        Seen(String note, String logKey, long cosignedUnixS) {
            this.note = note;
            this.logKey = logKey;
            this.cosignedUnixS = cosignedUnixS;
        }

        Map<String, Object> facts() {
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("note", note);
            facts.put("log_key", logKey);
            facts.put("cosigned_unix_s", cosignedUnixS);
            return facts;
        }
    }

    private final Vault vault;
    private final Folder home;

    /** Keeps what was seen sealed in a vault, and evidence in clear in the home. */
    public LogFiles(Vault vault, Folder home) {
        this.vault = vault;
        this.home = home;
    }

    /** Returns what was kept, null before the first checkpoint; throws CORRUPT_DATA where it was changed. */
    synchronized Seen last() {
        byte[] record = vault.get(RECORD);
        if (record == null) {
            return null;
        }
        Fields seen = Json.object(record, "what this device saw last of the log of rounds");
        return new Seen(seen.text("note"), seen.text("log_key"), seen.number("cosigned_unix_s"));
    }

    /** Keeps a checkpoint, on stable storage before this returns. */
    synchronized void keep(Seen seen) {
        vault.put(RECORD, Bytes.utf8(Json.write(seen.facts())));
    }

    /** Returns how many entries the log had that this device saw last; 0 before the first. */
    public long numEntries() {
        Seen seen = last();
        return seen == null ? 0 : new Note(seen.note).size;
    }

    /**
     * Keeps evidence behind what there is: the first pieces stay, or a liar could push them out. Where it signed nothing,
     * what it showed and "why" are its own words: other words are no other lie, and half of the room is left for what it
     * signed.
     */
    synchronized void accuse(Map<String, Object> evidence) {
        List<Object> kept;
        try {
            kept = new ArrayList<>(pieces());
        } catch (MienException damaged) {
            putAside();
            kept = new ArrayList<>();
        }
        boolean isBare = !isSigned(evidence);
        int bare = 0;
        for (Object each : kept) {
            Map<?, ?> piece = (Map<?, ?>) each;
            boolean isBareToo = !isSigned(piece);
            boolean isAlike = isBare ? isBareToo : evidence.get("why").equals(piece.get("why"));
            if (isAlike && evidence.get("statement").equals(piece.get("statement"))) {
                return;
            }
            bare += isBareToo ? 1 : 0;
        }
        if (isBare && bare >= MOST_PIECES / 2) {
            return;
        }
        kept.add(evidence);
        byte[] all = Bytes.utf8(Json.write(kept));
        if (kept.size() <= MOST_PIECES && all.length <= MOST_BYTES) {
            home.write(EVIDENCE, all);
        }
    }

    /** True where a log's key signed what was shown, so that somebody else can hold it against its owner. */
    private static boolean isSigned(Map<?, ?> piece) {
        if (!(piece.get("shown") instanceof Map)) {
            return false;
        }
        Map<?, ?> shown = (Map<?, ?>) piece.get("shown");
        try {
            Note note = new Note(String.valueOf(shown.get("note")));
            note.check(NoteKey.ofLog(Bytes.unhex(String.valueOf(shown.get("log_key"))), note.origin));
            return true;
        } catch (MienException | IllegalArgumentException unsigned) {
            return false;
        }
    }

    /** Returns what lies the coordinator told, oldest first, each in a sentence; none where the evidence is damaged. */
    public synchronized List<String> lies() {
        List<String> told = new ArrayList<>();
        try {
            for (Object each : pieces()) {
                told.add(Fields.of(each, WHAT).text("why"));
            }
        } catch (MienException damaged) {
            told.clear(); // the file is there for people to read
        }
        return told;
    }

    /** Returns the evidence, to hand on: JSON of hashes and signatures, nothing of people; empty where there is none. */
    public synchronized String evidence() {
        byte[] data = home.read(EVIDENCE);
        return data == null ? "" : Bytes.text(data);
    }

    /**
     * Forgets the last checkpoint, and puts evidence aside: for an owner to whom the operator explained why the log had to
     * begin anew, and one who leaves the fleet.
     */
    public synchronized void beginAnew() {
        putAside();
        vault.remove(RECORD);
    }

    private void putAside() {
        if (!home.has(EVIDENCE)) {
            return;
        }
        int number = 1;
        while (home.has(aside(number))) {
            number++;
        }
        home.rename(EVIDENCE, aside(number));
    }

    private static String aside(int number) {
        return EVIDENCE.replace(".json", "." + number + ".json");
    }

    private List<?> pieces() {
        byte[] data = home.read(EVIDENCE);
        Object found = data == null ? new ArrayList<>() : Json.parse(data, WHAT);
        if (!(found instanceof List)) {
            throw new MienException(ErrorCode.CORRUPT_DATA, WHAT + " is damaged");
        }
        for (Object each : (List<?>) found) {
            Fields.of(each, WHAT).text("why");
        }
        return (List<?>) found;
    }
}
