package mien.client.rounds;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.function.Consumer;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Records;
import mien.client.store.Vault;

/** What this device took part in, what it left out and why, and what that sent and received; the last of it, sealed. */
public final class Journal {
    private static final String RECORD = "journal";
    private static final int FORM = 1;
    private static final int MOST = 100;

    /** One step, or several in a row that ended alike. */
    public static final class Entry {
        public final long unixMs;
        public final Outcome.Kind kind;
        /** As text, empty where there was no round. */
        public final String round;

        public final String code;
        public final String reason;
        /** How many devices were in the sum, where this one counted. */
        public final int numReports;

        public final int times;

        Entry(
                long unixMs, Outcome.Kind kind, String round, String code, String reason, int numReports, int times) {
            this.unixMs = unixMs;
            this.kind = kind;
            this.round = round;
            this.code = code;
            this.reason = reason;
            this.numReports = numReports;
            this.times = times;
        }

        private boolean isLike(Entry other) {
            return kind == other.kind
                    && (isLie() || round.equals(other.round))
                    && code.equals(other.code)
                    && reason.equals(other.reason);
        }

        /** A lie is told once, however many rounds it is repeated in. */
        private boolean isLie() {
            return code.equals(ErrorCode.TRANSPARENCY.code());
        }

        private Entry again(Entry later) {
            return new Entry(later.unixMs, kind, round, code, reason, numReports, times + 1);
        }
    }

    private final Vault vault;
    private final List<Consumer<Content>> waiting = new ArrayList<>();

    /** Keeps the journal in a vault of its own. */
    public Journal(Vault vault) {
        this.vault = vault;
    }

    /** Notes how a step ended. */
    public synchronized void note(Outcome outcome, long unixMs) {
        String round = outcome.round == null ? "" : outcome.round.toString();
        note(new Entry(unixMs, outcome.kind, round, outcome.code, outcome.reason, outcome.numReports, 1));
    }

    /** Notes a step that ended by an error, and why. */
    public synchronized void note(MienException error, long unixMs) {
        note(new Entry(unixMs, Outcome.Kind.FAILED, "", error.code().code(), error.getMessage(), 0, 1));
    }

    private void note(Entry entry) {
        change(content -> add(content.entries, entry));
    }

    /** Counts bytes that were sent to the coordinator and received from it. */
    public synchronized void count(long sent, long received) {
        if (sent != 0 || received != 0) {
            change(
                    content -> {
                        content.sentBytes += sent;
                        content.receivedBytes += received;
                    });
        }
    }

    /** Writes a change, with those that waited for the key; where that is out of reach this one waits too, in memory. */
    private void change(Consumer<Content> change) {
        try {
            Content content = content();
            waiting.forEach(each -> each.accept(content));
            change.accept(content);
            put(content);
            waiting.clear();
        } catch (MienException error) {
            if (!error.code().isOutOfReach()) {
                throw error;
            }
            waiting.add(change);
            if (waiting.size() > MOST) {
                waiting.remove(0);
            }
        }
    }

    /** Returns what happened, the newest first. */
    public synchronized List<Entry> entries() {
        List<Entry> entries = content().entries;
        Collections.reverse(entries);
        return entries;
    }

    /** Returns how many bytes of messages went to the coordinator since the journal began. */
    public synchronized long sentBytes() {
        return content().sentBytes;
    }

    /** Returns how many came from it. */
    public synchronized long receivedBytes() {
        return content().receivedBytes;
    }

    /** Destroys the journal and its key. */
    public synchronized void wipe() {
        waiting.clear();
        vault.wipe();
    }

    private static final class Content {
        long sentBytes;
        long receivedBytes;
        final List<Entry> entries = new ArrayList<>();
    }

    private static void add(List<Entry> entries, Entry entry) {
        int first = entry.isLie() ? 0 : Math.max(0, entries.size() - 1);
        Entry added = entry;
        for (int i = entries.size() - 1; i >= first; i--) {
            if (entries.get(i).isLike(entry)) {
                added = entries.remove(i).again(entry);
                break;
            }
        }
        entries.add(added);
        while (entries.size() > MOST) {
            entries.remove(0);
        }
    }

    private void put(Content content) {
        if (vault.isLost()) {
            vault.wipe(); // its key never comes back; nothing but the diary is sealed by it
        }
        vault.put(RECORD, Records.bytes(out -> write(out, content)));
    }

    private static void write(DataOutputStream out, Content content) throws IOException {
        out.writeByte(FORM);
        out.writeLong(content.sentBytes);
        out.writeLong(content.receivedBytes);
        out.writeInt(content.entries.size());
        for (Entry entry : content.entries) {
            out.writeLong(entry.unixMs);
            out.writeUTF(entry.kind.name());
            Records.writeText(out, entry.round);
            Records.writeText(out, entry.code);
            Records.writeText(out, entry.reason);
            out.writeInt(entry.numReports);
            out.writeInt(entry.times);
        }
    }

    private Content content() {
        try {
            byte[] record = vault.get(RECORD);
            return record == null ? new Content() : Records.parse(record, Journal::read);
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error;
            }
            return new Content(); // a damaged diary stops nobody: a new one begins
        }
    }

    private static Content read(DataInputStream in) throws IOException {
        Records.require(in.readByte() == FORM);
        Content content = new Content();
        content.sentBytes = in.readLong();
        content.receivedBytes = in.readLong();
        for (int left = Records.count(in); left > 0; left--) {
            long unixMs = in.readLong();
            Outcome.Kind kind = Outcome.Kind.valueOf(in.readUTF());
            content.entries.add(
                    new Entry(unixMs, kind, in.readUTF(), in.readUTF(), in.readUTF(), in.readInt(), in.readInt()));
        }
        return content;
    }
}
