package mien.client.log;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Vectors;
import org.junit.Test;

/** Proofs and signed notes of a log, taken and refused as in Python. */
public class LogTest {
    private static Vectors file() throws Exception {
        return Vectors.load("golden/client/transparency.json");
    }

    private static boolean holds(Runnable check) {
        try {
            check.run();
            return true;
        } catch (MienException error) {
            assertEquals(ErrorCode.TRANSPARENCY, error.code());
            return false;
        }
    }

    private static List<byte[]> hashes(Vectors told) {
        List<byte[]> hashes = new ArrayList<>();
        for (int i = 0; i < told.size(); i++) {
            hashes.add(told.at(i).bytes());
        }
        return hashes;
    }

    @Test
    public void proofsThatSomethingIsInTheLog() throws Exception {
        Vectors cases = file().at("proofs").at("inclusion");
        for (int i = 0; i < cases.size(); i++) {
            Vectors each = cases.at(i);
            boolean holds =
                    holds(
                            () ->
                                    Merkle.checkInclusion(
                                            each.at("leaf").bytes(),
                                            each.at("index").number(),
                                            each.at("size").number(),
                                            hashes(each.at("proof")),
                                            each.at("root").bytes()));
            assertEquals("case " + i, each.at("holds").flag(), holds);
        }
        assertTrue(cases.size() > 50);
    }

    @Test
    public void proofsThatTheLogGoesOn() throws Exception {
        Vectors cases = file().at("proofs").at("consistency");
        for (int i = 0; i < cases.size(); i++) {
            Vectors each = cases.at(i);
            boolean holds =
                    holds(
                            () ->
                                    Merkle.checkConsistency(
                                            each.at("first").number(),
                                            each.at("first_root").bytes(),
                                            each.at("size").number(),
                                            each.at("root").bytes(),
                                            hashes(each.at("proof"))));
            assertEquals("case " + i, each.at("holds").flag(), holds);
        }
        assertTrue(cases.size() > 50);
    }

    @Test
    public void numbersThatNoTreeHasAreRefused() {
        byte[] hash = new byte[32];
        List<byte[]> none = new ArrayList<>();
        long[][] placed = {{-1, 1}, {Long.MIN_VALUE, 1}, {0, 0}, {0, -1}, {1, 1}, {0, (1L << 53) + 1}};
        for (long[] each : placed) {
            Raised.by(
                    ErrorCode.TRANSPARENCY,
                    each[0] + " of " + each[1],
                    () -> Merkle.checkInclusion(hash, each[0], each[1], none, hash));
        }
        for (long[] each : new long[][] {{-1, 1}, {2, 1}, {0, -1}, {5, (1L << 53) + 1}}) {
            Raised.by(
                    ErrorCode.TRANSPARENCY,
                    each[0] + " to " + each[1],
                    () -> Merkle.checkConsistency(each[0], hash, each[1], hash, none));
        }
    }

    @Test
    public void notesThatAreSigned() throws Exception {
        Vectors notes = file().at("notes");
        Vectors good = notes.at("good");
        for (int i = 0; i < good.size(); i++) {
            NoteKey key = NoteKey.parse(notes.at("keys").at(good.at(i).at("key").text()).text());
            Note note = new Note(good.at(i).at("note").text());
            assertEquals(good.at(i).at("unix_s").number(), note.check(key));
            assertTrue(note.isSaidToBeSignedBy(key));
            assertEquals(5, note.size);
        }
        Vectors refused = notes.at("refused");
        for (int i = 0; i < refused.size(); i++) {
            NoteKey key = NoteKey.parse(notes.at("keys").at(refused.at(i).at("key").text()).text());
            Note note = new Note(refused.at(i).at("note").text());
            Raised.by(ErrorCode.TRANSPARENCY, refused.at(i).at("why").text(), () -> note.check(key));
        }
        Vectors broken = notes.at("broken");
        for (int i = 0; i < broken.size(); i++) {
            String note = broken.at(i).at("note").text();
            Raised.by(ErrorCode.TRANSPARENCY, broken.at(i).at("why").text(), () -> new Note(note));
        }
    }

    @Test
    public void furtherWitnessesThatCannotBeAreRefused() throws Exception {
        Vectors keys = file().at("notes").at("keys");
        String witness = keys.at("registrar").text();
        assertEquals(1, new Quorum(Arrays.asList(witness), 0).needed);
        assertEquals(Arrays.asList(witness), new Quorum(Arrays.asList(witness), 1).lines());
        Raised.by(ErrorCode.TRANSPARENCY, "two of one", () -> new Quorum(Arrays.asList(witness), 2));
        Raised.by(ErrorCode.TRANSPARENCY, "below none", () -> new Quorum(Arrays.asList(witness), -1));
        Raised.by(ErrorCode.TRANSPARENCY, "one twice", () -> new Quorum(Arrays.asList(witness, witness), 1));
        Raised.by(ErrorCode.TRANSPARENCY, "a log's key", () -> new Quorum(Arrays.asList(keys.at("log").text()), 1));
        Raised.by(ErrorCode.TRANSPARENCY, "no key", () -> new Quorum(Arrays.asList("witness"), 1));
    }

    @Test
    public void keysAreReadAsTheyAreWritten() throws Exception {
        Vectors notes = file().at("notes");
        for (Object line : ((Map<?, ?>) notes.at("keys").raw()).values()) {
            assertEquals(line, NoteKey.parse((String) line).toString());
        }
        Map<?, ?> broken = (Map<?, ?>) notes.at("broken_keys").raw();
        for (Map.Entry<?, ?> each : broken.entrySet()) {
            String line = (String) each.getValue();
            Raised.by(ErrorCode.TRANSPARENCY, (String) each.getKey(), () -> NoteKey.parse(line));
        }
        assertTrue(NoteKey.parse(notes.at("keys").at("registrar").text()).isWitness);
    }
}
