package mien.client.enrol;

import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.vision.FaceReader;
import mien.client.vision.Frame;
import mien.client.vision.FrameJudge;
import mien.client.vision.Hint;
import mien.client.vision.Look;

/**
 * One person before a camera who says who they are: yes or no, never how much.
 *
 * <p>Each attempt compares one picture, the first good one of a steady view, so that an attempt is as safe as the model's
 * threshold says; after a no the person asks for another. The way out by PIN is open at any time.
 */
public final class VerifySession {
    /** Where a session stands. */
    public enum State {
        LOOKING,
        YES,
        NO,
        /** Too many failures: see {@link Step#waitMs}. */
        LOCKED,
        /** The person chose the PIN. */
        PIN
    }

    /** What to show. */
    public static final class Step {
        public final State state;
        /** What the person can do about the picture; null where there is nothing to correct. */
        public final Hint hint;
        /** How long faces are not looked at, in milliseconds. */
        public final long waitMs;

        Step(State state, Hint hint, long waitMs) {
            this.state = state;
            this.hint = hint;
            this.waitMs = waitMs;
        }
    }

    private final FaceReader reader;
    private final Verifier verifier;
    private final Lockout lockout;
    private final PadCheck pad;
    private final FrameJudge judge = new FrameJudge();
    private State state = State.LOOKING;

    /** Begins; {@code pad} may be null. Throws CONFIG for a check that brings no measured report. */
    public VerifySession(FaceReader reader, Verifier verifier, Lockout lockout, PadCheck pad) {
        if (pad != null && pad.report() == null) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "this liveness check brings no measured report; measure it for each species of attack, or leave it out");
        }
        this.reader = reader;
        this.verifier = verifier;
        this.lockout = lockout;
        this.pad = pad;
    }

    /** Looks at a picture; once a session has decided, pictures change nothing. */
    public synchronized Step offer(Frame frame) {
        Step step = step(null);
        if (step.state != State.LOOKING) {
            return step;
        }
        Look look = reader.look(frame);
        Hint hint = judge.see(look);
        if (look.isGood() && judge.isReady()) {
            state = isThem(look) ? State.YES : State.NO;
        }
        return new Step(state, hint, 0);
    }

    private boolean isThem(Look look) {
        lockout.begin();
        boolean isThem;
        try {
            // Written so that what is no number is refused.
            boolean isLiving = pad == null || pad.score(look.frame, look.face) >= pad.report().threshold;
            isThem = isLiving && verifier.isThem(look.crop());
        } catch (MienException error) {
            lockout.undo();
            throw error;
        }
        if (isThem) {
            lockout.clear();
        }
        return isThem;
    }

    /** Returns where the session stands, as for a clock that is drawn between pictures. */
    public synchronized Step step() {
        return step(null);
    }

    private Step step(Hint hint) {
        long waitMs = state == State.LOOKING ? lockout.waitMs() : 0;
        return new Step(waitMs > 0 ? State.LOCKED : state, hint, waitMs);
    }

    /** Begins another attempt after a no. */
    public synchronized void tryAgain() {
        if (state == State.NO) {
            state = State.LOOKING;
            judge.reset();
        }
    }

    /** Leaves the face for the PIN: the session is over. */
    public synchronized void usePin() {
        state = State.PIN;
    }

    /** Tells that the phone's own lock was opened: failures are forgotten. Throws CONFIG where it was not asked for. */
    public synchronized void pinConfirmed() {
        if (state != State.PIN) {
            throw new MienException(ErrorCode.CONFIG, "the PIN was not asked for; choose it first");
        }
        lockout.clear();
    }
}
