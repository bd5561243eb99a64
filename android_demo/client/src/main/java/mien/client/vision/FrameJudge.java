package mien.client.vision;

/**
 * Tells one hint at a time from what a camera shows, without flicker: a hint changes when two looks in a row ask for
 * another, and stays as long as it is among the reasons.
 */
public final class FrameJudge {
    /** How many looks in a row have to agree: a blink is no change. */
    private static final int STEADY = 2;

    private Hint shown;
    private Hint asked;
    private int times;

    /** Takes in a look and returns the hint to show; null where there is nothing to correct. */
    public Hint see(Look look) {
        Hint now = look.isGood() ? null : look.hints.get(0);
        now = shown != null && look.hints.contains(shown) ? shown : now;
        times = now == asked ? times + 1 : 1;
        asked = now;
        if (times >= STEADY) {
            shown = now;
        }
        return shown;
    }

    /** Returns whether looks have been good for long enough to use one. */
    public boolean isReady() {
        return asked == null && times >= STEADY;
    }

    /** Begins anew, as for another person. */
    public void reset() {
        shown = null;
        asked = null;
        times = 0;
    }
}
