package mien.client.rounds;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import com.google.protobuf.ByteString;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.log.NoteKey;
import mien.client.log.Quorum;
import mien.client.secagg.AttemptId;
import mien.client.secagg.Expected;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.wire.Bytes;
import mien.client.wire.Json;
import mien.client.wire.RoundRef;
import mien.v1.RoundsOuterClass.ProveRoundReply;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** The device's look at the log of rounds: what it takes, what it refuses, and what it keeps for its owner. */
public class RoundLogTest {
    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private Vectors file;
    private Folder home;
    private LogFiles files;
    private RoundRef ref;
    private String entry;
    private int numUncosigned;
    /** By how much the device's clock was set back. */
    private long behindS;

    @Before
    public void open() throws Exception {
        file = Vectors.load("golden/client/transparency.json");
        home = new Folder(temporary.getRoot().toPath());
        files = opened(home);
        Vectors round = file.at("round");
        ref = new RoundRef(round.at("task_id").text(), round.at("round").word(), round.at("attempt").word());
        entry = file.at("entry").at("text").text();
    }

    private static LogFiles opened(Folder home) {
        return new LogFiles(new Vault(home.folder("log"), new FileKeyProvider(home.folder("keys")), "log"), home);
    }

    private Clock clock() {
        return new Clock() {
            @Override
            public long unixMs() {
                return 1000 * (file.at("now_unix_s").number() - behindS);
            }

            @Override
            public long monotonicMs() {
                return 0;
            }

            @Override
            public void sleep(long ms) {}
        };
    }

    private Vectors look(String what) {
        Vectors looks = file.at("looks");
        for (int i = 0; i < looks.size(); i++) {
            if (looks.at(i).at("what").text().equals(what)) {
                return looks.at(i);
            }
        }
        throw new IllegalArgumentException(what);
    }

    private Outcome check(LogFiles kept, Vectors look) {
        NoteKey witness = NoteKey.parse(file.at("witness_key").text());
        Quorum further = quorum(look.at("further"));
        RoundLog log = new RoundLog(witness, further, kept, () -> look.at("registrar_answers").flag(), clock());
        RoundLog.Prover coordinator = firstSize -> proof(look, firstSize);
        if (isOfRound(look)) {
            return log.check(coordinator, ref, entry, () -> numUncosigned++);
        }
        Vectors release = file.at("release");
        return log.checkRelease(
                coordinator, release.at("model_id").text(), release.at("population").text(), () -> numUncosigned++);
    }

    private static boolean isOfRound(Vectors look) {
        return look.at("of").text().equals("round");
    }

    private static Quorum quorum(Vectors told) {
        List<String> keys = new ArrayList<>();
        for (int i = 0; i < told.at("keys").size(); i++) {
            keys.add(told.at("keys").at(i).text());
        }
        return new Quorum(keys, told.at("needed").word());
    }

    /** Returns what the coordinator of a look answers, who has to be asked from the size on that was seen last. */
    private static ProveRoundReply proof(Vectors look, long firstSize) {
        long seen = look.at("seen").raw() == null ? 0 : Long.parseLong(look.at("seen").at("note").text().split("\n")[1]);
        assertEquals(seen, firstSize);
        if (look.at("error").raw() != null) {
            ErrorCode code = ErrorCode.of(look.at("error").at("code").text());
            throw new MienException(code, look.at("error").at("text").text());
        }
        Vectors told = look.at("proof");
        ProveRoundReply.Builder reply =
                ProveRoundReply.newBuilder()
                        .setCheckpoint(told.at("checkpoint").text())
                        .setLogKey(bytes(told.at("log_key")))
                        .setPosition(told.at("position").number())
                        .setEntry(bytes(told.at("entry")));
        for (int i = 0; i < told.at("inclusion").size(); i++) {
            reply.addInclusion(bytes(told.at("inclusion").at(i)));
        }
        for (int i = 0; i < told.at("consistency").size(); i++) {
            reply.addConsistency(bytes(told.at("consistency").at(i)));
        }
        return reply.build();
    }

    private static ByteString bytes(Vectors hex) {
        return ByteString.copyFrom(hex.bytes());
    }

    private static void see(LogFiles kept, Vectors seen) {
        kept.keep(
                new LogFiles.Seen(
                        seen.at("note").text(), seen.at("log_key").text(), seen.at("cosigned_unix_s").number()));
    }

    @Test
    public void theEntryOfARoundIsWhatTheLogHolds() {
        Vectors hashes = file.at("entry");
        Expected expected =
                new Expected(
                        Expected.taskId(ref.taskId),
                        hashes.at("task_sha256").bytes(),
                        hashes.at("model_sha256").bytes(),
                        hashes.at("layout_sha256").bytes(),
                        hashes.at("statement_sha256").bytes(),
                        1,
                        0);
        AttemptId attempt = new AttemptId(Expected.taskId(ref.taskId), ref.round, ref.attempt);
        assertEquals(entry, expected.logEntry(attempt));
    }

    @Test
    public void everyLookEndsAsInPythonAndALieLeavesEvidence() {
        Vectors looks = file.at("looks");
        for (int i = 0; i < looks.size(); i++) {
            Vectors look = looks.at(i);
            String what = look.at("what").text();
            Folder folder = home.folder("look-" + i);
            LogFiles kept = opened(folder);
            if (look.at("seen").raw() != null) {
                see(kept, look.at("seen"));
            }
            switch (look.at("ends").text()) {
                case "taken":
                    assertNull(what, check(kept, look));
                    break;
                case "waits":
                    assertEquals(what, Outcome.Kind.WAIT, check(kept, look).kind);
                    break;
                case "is too old":
                    Raised.by(ErrorCode.VERSION, what, () -> check(kept, look));
                    break;
                default:
                    String said = Raised.by(ErrorCode.TRANSPARENCY, what, () -> check(kept, look));
                    String then = isOfRound(look) ? "; nothing was trained" : "; the model that is here stays in use";
                    assertTrue(said, said.startsWith(look.at("why").text() + then));
                    assertEquals(what, Collections.singletonList(look.at("why").text()), kept.lies());
                    checkEvidence(kept, look);
            }
            if (!look.at("ends").text().equals("refused")) {
                assertEquals(what, "", kept.evidence());
            }
            assertEquals(what, what.equals("no cosignature, the registrar away") ? 1 : 0, numUncosigned);
            numUncosigned = 0;
            Object nowKept = kept.last() == null ? null : kept.last().facts();
            assertEquals(what, look.at("kept").raw(), nowKept);
        }
    }

    @Test
    public void aClockThatIsSetBackAddsNoTimeWithoutTheRegistrar() {
        Vectors look = look("no cosignature, the registrar away");
        long cosignedS = look.at("seen").at("cosigned_unix_s").number();
        for (long aheadS : new long[] {RoundLog.GRACE_S, RoundLog.GRACE_S + 1, 10 * 86_400}) {
            LogFiles kept = opened(home.folder("ahead-" + aheadS));
            see(kept, look.at("seen"));
            behindS = file.at("now_unix_s").number() - cosignedS + aheadS;
            Outcome found = check(kept, look);
            assertEquals("cosigned " + aheadS + " s from now", aheadS <= RoundLog.GRACE_S, found == null);
        }
    }

    /** What is handed on holds what both sides signed, as it was shown. */
    private void checkEvidence(LogFiles kept, Vectors look) {
        Vectors evidence = Vectors.of(Json.parse(Bytes.utf8(kept.evidence()), "evidence")).at(0);
        String released = file.at("release").at("text").text();
        assertEquals(isOfRound(look) ? entry : released, evidence.at("statement").text());
        assertEquals(file.at("witness_key").text(), evidence.at("witness_key").text());
        assertEquals(file.at("now_unix_s").number(), evidence.at("at_unix_s").number());
        String name = "release of " + file.at("release").at("model_id").text();
        assertEquals(isOfRound(look) ? "round 3, attempt 2" : name, evidence.at("round").text());
        assertEquals(look.at("seen").raw(), evidence.at("seen").raw());
        if (look.at("error").raw() == null && !look.at("what").text().equals("garbage")) {
            Vectors shown = evidence.at("shown");
            assertEquals(look.at("proof").at("checkpoint").text(), shown.at("note").text());
            for (String part : new String[] {"log_key", "position", "inclusion", "consistency", "entry"}) {
                assertEquals(part, look.at("proof").at(part).raw(), shown.at(part).raw());
            }
        }
    }

    @Test
    public void whatWasSeenLiesSealedAndDamageKeepsTheDeviceOut() {
        see(files, look("a log that grew").at("seen"));
        byte[] sealed = home.folder("log").read("seen");
        assertFalse(new String(sealed, StandardCharsets.ISO_8859_1).contains("mien-log"));
        assertEquals(2, opened(home).numEntries());
        sealed[sealed.length - 1] ^= 1;
        home.folder("log").write("seen", sealed);
        Raised.by(ErrorCode.CORRUPT_DATA, "damaged", () -> check(opened(home), look("a log that grew")));
    }

    @Test
    public void theSameLieIsKeptOnceAndTheFirstPiecesStay() {
        Vectors forked = look("a forked log");
        see(files, forked.at("seen"));
        for (int time = 0; time < 3; time++) {
            Raised.by(ErrorCode.TRANSPARENCY, "a fork", () -> check(opened(home), forked));
        }
        assertEquals(1, files.lies().size());
        String honest = entry;
        for (int lie = 0; lie < 30; lie++) {
            entry = honest.replace("\"round\":3", "\"round\":" + (100 + lie));
            Raised.by(ErrorCode.TRANSPARENCY, "a fork", () -> check(files, forked));
        }
        assertEquals(20, files.lies().size());
        Vectors kept = Vectors.of(Json.parse(Bytes.utf8(files.evidence()), "evidence"));
        assertEquals(honest, kept.at(0).at("statement").text());
        assertTrue(kept.at(19).at("statement").text().contains("\"round\":118"));
    }

    @Test
    public void emptyAnswersLeaveRoomForWhatALiarSigned() {
        NoteKey witness = NoteKey.parse(file.at("witness_key").text());
        RoundLog log = new RoundLog(witness, Quorum.NONE, files, () -> true, clock());
        for (int lie = 0; lie < 30; lie++) {
            String words = "there is none, for time " + lie;
            String told = entry.replace("\"round\":3", "\"round\":" + (100 + Math.max(0, lie - 3)));
            RoundLog.Prover silent =
                    size -> {
                        throw new MienException(ErrorCode.NOT_FOUND, words);
                    };
            Raised.by(ErrorCode.TRANSPARENCY, "none", () -> log.check(silent, ref, told, () -> {}));
        }
        assertEquals(10, files.lies().size());
        Vectors forked = look("a forked log");
        see(files, forked.at("seen"));
        Raised.by(ErrorCode.TRANSPARENCY, "a fork", () -> check(files, forked));
        assertEquals(11, files.lies().size());
    }

    @Test
    public void unsignedNotesLeaveRoomForWhatALiarSigned() {
        Vectors forked = look("a forked log");
        see(files, forked.at("seen"));
        RoundLog.Prover forging =
                size -> proof(forked, size).toBuilder().setLogKey(ByteString.copyFrom(new byte[32])).build();
        NoteKey witness = NoteKey.parse(file.at("witness_key").text());
        RoundLog log = new RoundLog(witness, Quorum.NONE, files, () -> true, clock());
        for (int lie = 0; lie < 30; lie++) {
            String told = entry.replace("\"round\":3", "\"round\":" + (100 + lie));
            Raised.by(ErrorCode.TRANSPARENCY, "evidence is kept", () -> log.check(forging, ref, told, () -> {}));
        }
        assertEquals(10, files.lies().size());
        Raised.by(ErrorCode.TRANSPARENCY, "a fork", () -> check(files, forked));
        assertEquals(11, files.lies().size());
    }

    @Test
    public void whatALiarSendsInPlentyIsNotKept() {
        char[] much = new char[900_000];
        Arrays.fill(much, '\u2014');
        ProveRoundReply.Builder reply = ProveRoundReply.newBuilder().setCheckpoint(new String(much));
        for (int i = 0; i < 5_000; i++) {
            reply.addInclusion(ByteString.copyFrom(new byte[100]));
        }
        NoteKey witness = NoteKey.parse(file.at("witness_key").text());
        RoundLog log = new RoundLog(witness, Quorum.NONE, files, () -> true, clock());
        for (int lie = 0; lie < 30; lie++) {
            String told = entry + lie;
            Raised.by(ErrorCode.TRANSPARENCY, "plenty", () -> log.check(size -> reply.build(), ref, told, () -> {}));
        }
        assertTrue(files.evidence().length() <= 1 << 18);
        assertFalse(files.lies().isEmpty());
    }

    @Test
    public void anOwnerCanBeginAnewAndKeepsTheEvidence() {
        Vectors forked = look("a forked log");
        see(files, forked.at("seen"));
        Raised.by(ErrorCode.TRANSPARENCY, "a fork", () -> check(files, forked));
        byte[] evidence = home.read(LogFiles.EVIDENCE);
        files.beginAnew();
        assertTrue(files.lies().isEmpty());
        assertNull(files.last());
        assertArrayEquals(evidence, home.read("log-evidence.1.json"));
        Vectors lie = look("another statement before anything was seen");
        Raised.by(ErrorCode.TRANSPARENCY, "nothing was seen", () -> check(files, lie));
        files.beginAnew();
        assertTrue(home.has("log-evidence.2.json"));
        home.write(LogFiles.EVIDENCE, new byte[] {'{'});
        assertTrue("a damaged file is put aside for what comes", files.lies().isEmpty());
        Raised.by(ErrorCode.TRANSPARENCY, "once more", () -> check(files, lie));
        assertEquals(1, files.lies().size());
        assertTrue(home.has("log-evidence.3.json"));
    }

    @Test
    public void anErrorOfTheNetworkIsNoLie() {
        NoteKey witness = NoteKey.parse(file.at("witness_key").text());
        RoundLog log = new RoundLog(witness, Quorum.NONE, files, () -> true, clock());
        for (ErrorCode code : new ErrorCode[] {ErrorCode.UNREACHABLE, ErrorCode.DRAINING, ErrorCode.LATE}) {
            RoundLog.Prover away =
                    size -> {
                        throw new MienException(code, "no answer");
                    };
            Raised.by(code, "no proof", () -> log.check(away, ref, entry, () -> {}));
        }
        assertEquals("", files.evidence());
    }
}
