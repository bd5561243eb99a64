package mien.client.enrol;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import java.util.Collections;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.enrol.VerifySession.State;
import mien.client.enrol.VerifySession.Step;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.vision.Drawings;
import mien.client.vision.Face;
import mien.client.vision.FaceReader;
import mien.client.vision.FixedFinder;
import mien.client.vision.Frame;
import mien.client.vision.Hint;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Who stands before the camera is told yes or no, once for each attempt, and can always leave for the PIN. */
public class VerifyTest {
    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private final HeldClock clock = new HeldClock();
    private final FixedFinder finder = new FixedFinder(Drawings.head(0, 0.9));
    private Lockout lockout;
    private int numCompared;
    private boolean isThem;

    @Before
    public void makeLockout() {
        Folder root = new Folder(temporary.getRoot().toPath());
        lockout = new Lockout(new Vault(root.folder("attempts"), new FileKeyProvider(root.folder("keys")), "attempts"), clock);
    }

    private VerifySession session(PadCheck pad) {
        Verifier verifier = crop -> {
            numCompared++;
            return isThem;
        };
        return new VerifySession(new FaceReader(finder), verifier, lockout, pad);
    }

    private static Step look(VerifySession session, int times) {
        Step step = null;
        for (int i = 0; i < times; i++) {
            step = session.offer(Drawings.good(i));
        }
        return step;
    }

    @Test
    public void aSteadyViewIsComparedOnce() {
        isThem = true;
        VerifySession session = session(null);
        assertEquals(State.LOOKING, look(session, 1).state);
        assertEquals(0, numCompared);
        assertEquals(State.YES, look(session, 1).state);
        assertEquals("once decided it looks no more", State.YES, look(session, 5).state);
        assertEquals(1, numCompared);
        assertEquals(0, lockout.failures());
    }

    @Test
    public void aNoCountsAndAnotherAttemptIsAskedFor() {
        VerifySession session = session(null);
        assertEquals(State.NO, look(session, 9).state);
        assertEquals(1, numCompared);
        assertEquals(1, lockout.failures());
        session.tryAgain();
        assertEquals(State.LOOKING, session.step().state);
        isThem = true;
        assertEquals(State.YES, look(session, 2).state);
        assertEquals("a yes forgets failures", 0, lockout.failures());
        session.tryAgain();
        assertEquals("a yes stays one", State.YES, session.step().state);
    }

    @Test
    public void picturesThatCannotBeComparedDoNotCount() {
        finder.faces = Collections.<Face>emptyList();
        Step step = look(session(null), 50);
        assertEquals(State.LOOKING, step.state);
        assertEquals(Hint.NO_FACE, step.hint);
        assertEquals(0, numCompared + lockout.failures());
    }

    @Test
    public void afterFiveFailuresItLooksNoMoreUntilTheWaitIsOver() {
        for (int i = 0; i < 5; i++) {
            look(session(null), 2);
        }
        int looks = finder.numLooks;
        VerifySession session = session(null);
        Step step = look(session, 3);
        assertEquals(State.LOCKED, step.state);
        assertEquals(30_000, step.waitMs);
        assertNull(step.hint);
        assertEquals("nor does it search", looks, finder.numLooks);
        clock.sleep(30_000);
        isThem = true;
        assertEquals(State.YES, look(session, 2).state);
    }

    @Test
    public void thePinIsOpenAtAnyTimeAndForgetsFailures() {
        for (int i = 0; i < 5; i++) {
            look(session(null), 2);
        }
        VerifySession session = session(null);
        Raised.by(ErrorCode.CONFIG, "a PIN that nobody asked for", session::pinConfirmed);
        session.usePin();
        assertEquals(State.PIN, look(session, 3).state);
        session.tryAgain();
        assertEquals(State.PIN, session.step().state);
        assertEquals("until it is confirmed nothing is forgotten", 5, lockout.failures());
        session.pinConfirmed();
        assertEquals(0, lockout.failures());
    }

    @Test
    public void whereComparingFailsTheAttemptDoesNotCount() {
        Verifier broken = crop -> {
            throw new MienException(ErrorCode.MODEL_MISMATCH, "update first");
        };
        VerifySession session = new VerifySession(new FaceReader(finder), broken, lockout, null);
        look(session, 1);
        Raised.by(ErrorCode.MODEL_MISMATCH, "another model", () -> look(session, 1));
        assertEquals(0, lockout.failures());
        assertEquals(State.LOOKING, session.step().state);
    }

    @Test
    public void aProgramThatDiesWhileComparingHasFailed() {
        Verifier dying = crop -> {
            throw new Error("it dies");
        };
        VerifySession session = new VerifySession(new FaceReader(finder), dying, lockout, null);
        look(session, 1);
        try {
            look(session, 1);
        } catch (Error dead) {
            assertEquals("it dies", dead.getMessage());
        }
        assertEquals(1, lockout.failures());
    }

    @Test
    public void aLivenessCheckDecidesFirstAndNeedsAReport() {
        isThem = true;
        PadReport report = new PadReport(
                "made up", 0.5, Collections.singletonMap("print", new PadReport.ErrorCount(0, 9)),
                new PadReport.ErrorCount(1, 9), "nothing", "2026-01-01");
        for (double score : new double[] {0.4, Double.NaN}) {
            assertEquals(State.NO, look(session(pad(report, score)), 2).state);
        }
        assertEquals(0, numCompared);
        assertEquals("attacks count", 2, lockout.failures());
        assertEquals(State.YES, look(session(pad(report, 0.5)), 2).state);
        Raised.by(ErrorCode.CONFIG, "no report", () -> session(pad(null, 1)));
        Raised.by(ErrorCode.CONFIG, "more errors than tries", () -> new PadReport.ErrorCount(2, 1));
        Raised.by(
                ErrorCode.CONFIG,
                "no species",
                () -> new PadReport("a", 0, Collections.<String, PadReport.ErrorCount>emptyMap(), report.bonaFide, "b", "c"));
    }

    private static PadCheck pad(PadReport report, double score) {
        return new PadCheck() {
            @Override
            public PadReport report() {
                return report;
            }

            @Override
            public double score(Frame frame, Face face) {
                return score;
            }
        };
    }
}
