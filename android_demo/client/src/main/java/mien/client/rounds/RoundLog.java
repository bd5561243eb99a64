package mien.client.rounds;

import com.google.protobuf.ByteString;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.log.Merkle;
import mien.client.log.Note;
import mien.client.log.NoteKey;
import mien.client.log.Quorum;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;
import mien.client.wire.RoundRef;
import mien.v1.RoundsOuterClass.ProveRoundReply;

/**
 * The device's look at the log of rounds: it trains only on a statement that the log holds for everybody to see.
 *
 * <p>A round's statement has to be in the coordinator's log, and a model's release before the model comes into use here.
 * Both are looked up under a checkpoint that goes on from the last one that this device saw and that the registrar cosigned, whose key came with joining; so did those of further witnesses, of whom as
 * many have to have cosigned as the registrar said. Without the registrar's cosignature a checkpoint is taken only while this
 * device itself finds the registrar away, and at most an hour after the last cosignature that it saw; what it took then
 * binds the coordinator all the same.
 */
public final class RoundLog {
    /** How long after the last cosignature a device goes on while it finds the registrar away. */
    static final long GRACE_S = 3600;

    private static final long PAUSE_MS = 5_000;
    /** More hashes than any proof has: what a liar sends beyond them is not kept. */
    private static final int MOST_HASHES = 64;

    private static final int MOST_ENTRY_BYTES = 1024;

    /** Asks the coordinator for its proof, from the log's size that this device saw last on. */
    public interface Prover {
        /** Returns what the coordinator shows of a round, with what joins it to a log of that size. */
        ProveRoundReply prove(long firstSize);
    }

    /** What the log has to hold: a round's statement, or a release by its model and population. */
    private static final class Sought {
        /** What it is, in sentences: a round or a release; what it is kept as; what becomes of a refusal. */
        final String what;

        final String name;
        final String kept;
        final String entry;
        /** Returns the entry whose inclusion counts. */
        final Function<ProveRoundReply, byte[]> logged;

        Sought(String what, String name, String kept, String entry, Function<ProveRoundReply, byte[]> logged) {
            this.what = what;
            this.name = name;
            this.kept = kept;
            this.entry = entry;
            this.logged = logged;
        }
    }

    private final NoteKey witness;
    private final Quorum further;
    private final LogFiles files;
    private final BooleanSupplier registrarAnswers;
    private final Clock clock;

    /** {@code registrarAnswers} is asked only where its cosignature is missing; {@code further} has to cosign as well. */
    public RoundLog(
            NoteKey witness, Quorum further, LogFiles files, BooleanSupplier registrarAnswers, Clock clock) {
        this.witness = witness;
        this.further = further;
        this.files = files;
        this.registrarAnswers = registrarAnswers;
        this.clock = clock;
    }

    /**
     * Returns null once the log holds a round, else a pause: a cosignature is missing. Throws TRANSPARENCY
     * for a fork or a statement that is not there, with the evidence kept. {@code entry} is what the log has to hold;
     * {@code uncosigned} hears that a round is taken on the coordinator's signature alone.
     */
    Outcome check(Prover coordinator, RoundRef ref, String entry, Runnable uncosigned) {
        byte[] logged = Bytes.utf8(entry);
        Sought sought = new Sought("round", ref.toString(), "nothing was trained", entry, told -> logged);
        try {
            return found(coordinator, sought, uncosigned);
        } catch (MienException error) {
            throw error.code() == ErrorCode.VERSION ? unshown(sought, error) : error;
        }
    }

    /**
     * Returns the same of a model's release to a population, or to all, which the coordinator shows. Throws VERSION
     * besides, for a coordinator that is too old to show any: it need not lie.
     */
    public Outcome checkRelease(Prover coordinator, String modelId, String population, Runnable uncosigned) {
        Map<String, Object> entry = new LinkedHashMap<>();
        entry.put("kind", "release");
        entry.put("model_id", modelId);
        entry.put("population", population);
        String kept = "the model that is here stays in use";
        Sought sought =
                new Sought(
                        "release",
                        "release of " + modelId,
                        kept,
                        Json.write(entry),
                        told -> released(told.getEntry().toByteArray(), modelId, population));
        try {
            return found(coordinator, sought, uncosigned);
        } catch (MienException error) {
            if (error.code() != ErrorCode.VERSION) {
                throw error;
            }
            throw new MienException(
                    ErrorCode.VERSION,
                    why(sought, error) + "; " + kept + ", and the operator upgrades the coordinator first");
        }
    }

    /** Returns a release's entry as it is shown, which says for how many it was; throws TRANSPARENCY for another one. */
    private static byte[] released(byte[] unverified, String modelId, String population) {
        Fields told;
        try {
            told = Json.object(unverified, "the entry");
        } catch (MienException error) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY, "the log holds an entry that no program writes; tell the operator");
        }
        boolean isFor = told.raw("population") == null || population.equals(told.raw("population"));
        if (!"release".equals(told.raw("kind")) || !modelId.equals(told.raw("model_id")) || !isFor) {
            throw new MienException(ErrorCode.TRANSPARENCY, "the coordinator shows the entry of another release");
        }
        return unverified;
    }

    private Outcome found(Prover coordinator, Sought sought, Runnable uncosigned) {
        LogFiles.Seen last = files.last();
        Note lastNote = last == null ? null : new Note(last.note);
        ProveRoundReply unverified;
        try {
            unverified = coordinator.prove(lastNote == null ? 0 : lastNote.size);
        } catch (MienException error) {
            throw error.code() == ErrorCode.NOT_FOUND ? unshown(sought, error) : error;
        }
        LogFiles.Seen seen;
        int missing;
        try {
            seen = checked(unverified, sought.logged.apply(unverified), lastNote);
            missing = further.missing(new Note(seen.note));
        } catch (MienException error) {
            throw accused(error.getMessage(), unverified, sought, last);
        }
        if (missing > 0) {
            return Outcome.wait(
                    PAUSE_MS,
                    missing + " of the " + further.needed + " further witnesses that this phone asks for have not cosigned the"
                            + " log of rounds with this " + sought.what + "; the operator sees why");
        }
        if (seen.cosignedUnixS == 0) {
            // Either way: a clock that was set back must not lengthen the hour.
            boolean mayWait = last == null || Math.abs(clock.unixMs() / 1000 - last.cosignedUnixS) > GRACE_S;
            if (mayWait || registrarAnswers.getAsBoolean()) {
                return Outcome.wait(
                        PAUSE_MS,
                        "the registrar has not cosigned the log of rounds with this " + sought.what
                                + " yet; the operator sees why");
            }
            seen = new LogFiles.Seen(seen.note, seen.logKey, last.cosignedUnixS);
            uncosigned.run();
        }
        if (last == null || !last.note.equals(seen.note)) {
            files.keep(seen);
        }
        return null;
    }

    /** Returns what is to be remembered of a proof that holds; cosigned at 0 where the cosignature is missing. */
    private LogFiles.Seen checked(ProveRoundReply unverified, byte[] entry, Note last) {
        Note note = new Note(unverified.getCheckpoint());
        byte[] logKey = unverified.getLogKey().toByteArray();
        note.check(NoteKey.ofLog(logKey, note.origin));
        if (last != null && !last.origin.equals(note.origin)) {
            throw new MienException(ErrorCode.TRANSPARENCY, "the coordinator shows another log than before");
        }
        long first = last == null ? 0 : last.size;
        byte[] firstRoot = last == null ? Merkle.emptyRoot() : last.root;
        Merkle.checkConsistency(first, firstRoot, note.size, note.root, hashes(unverified.getConsistencyList()));
        byte[] leaf = Merkle.leafHash(entry);
        List<byte[]> inclusion = hashes(unverified.getInclusionList());
        Merkle.checkInclusion(leaf, unverified.getPosition(), note.size, inclusion, note.root);
        long cosignedUnixS = note.isSaidToBeSignedBy(witness) ? note.check(witness) : 0;
        return new LogFiles.Seen(unverified.getCheckpoint(), Bytes.hex(logKey), cosignedUnixS);
    }

    private static List<byte[]> hashes(List<ByteString> told) {
        List<byte[]> hashes = new ArrayList<>();
        for (ByteString each : told) {
            hashes.add(each.toByteArray());
        }
        return hashes;
    }

    private static String why(Sought sought, MienException error) {
        return "the coordinator does not show that the log of rounds holds this " + sought.what
                + " (" + error.getMessage() + ")";
    }

    private MienException unshown(Sought sought, MienException error) {
        return accused(why(sought, error), null, sought, files.last());
    }

    /** Returns the error of a lie, once all that somebody else needs to judge it is kept: hashes and signatures. */
    private MienException accused(String why, ProveRoundReply unverified, Sought sought, LogFiles.Seen last) {
        Map<String, Object> evidence = new LinkedHashMap<>();
        evidence.put("format", 1);
        evidence.put("why", why);
        evidence.put("at_unix_s", clock.unixMs() / 1000);
        evidence.put("round", sought.name);
        evidence.put("statement", sought.entry);
        evidence.put("witness_key", witness.toString());
        evidence.put("further_witnesses", further.lines());
        evidence.put("seen", last == null ? null : last.facts());
        evidence.put("shown", unverified == null ? null : shown(unverified));
        files.accuse(evidence);
        return new MienException(
                ErrorCode.TRANSPARENCY, why + "; " + sought.kept + ", and the evidence is kept for you to hand on");
    }

    private static Map<String, Object> shown(ProveRoundReply unverified) {
        String note = unverified.getCheckpoint();
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("note", note.substring(0, Math.min(note.length(), Note.MAX_BYTES)));
        shown.put("log_key", hex(unverified.getLogKey()));
        shown.put("position", unverified.getPosition());
        shown.put("inclusion", hex(unverified.getInclusionList()));
        shown.put("consistency", hex(unverified.getConsistencyList()));
        ByteString entry = unverified.getEntry();
        shown.put("entry", Bytes.hex(entry.substring(0, Math.min(entry.size(), MOST_ENTRY_BYTES)).toByteArray()));
        return shown;
    }

    private static List<Object> hex(List<ByteString> told) {
        List<Object> hashes = new ArrayList<>();
        for (ByteString each : told.subList(0, Math.min(told.size(), MOST_HASHES))) {
            hashes.add(hex(each));
        }
        return hashes;
    }

    private static String hex(ByteString told) {
        return Bytes.hex(told.substring(0, Math.min(told.size(), MOST_HASHES)).toByteArray());
    }
}
