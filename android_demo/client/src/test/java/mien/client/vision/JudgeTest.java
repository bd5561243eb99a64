package mien.client.vision;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import org.junit.Test;

/** One picture is judged as Python judges it, and many give hints that do not flicker. */
public class JudgeTest {
    private final Frame frame = Drawings.good(0);

    private Look look(Face... faces) {
        return new FaceReader(new FixedFinder(faces)).look(frame);
    }

    private static Look with(Hint... hints) {
        return new Look(null, null, null, null, Arrays.asList(hints));
    }

    @Test
    public void aGoodFaceIsTaken() {
        Look look = look(Drawings.head(0, 0.9));
        assertTrue(look.toString(), look.isGood());
        assertEquals(3 * 112 * 112, look.crop().length);
        assertEquals(0, look.yawDeg(), 0.1);
        assertEquals(20, look(Drawings.head(20, 0.9)).yawDeg(), 0.1);
        assertEquals(-20, look(Drawings.head(-20, 0.9)).yawDeg(), 0.1);
    }

    @Test
    public void noFaceSeveralFacesAndOnesInTheBackground() {
        Face face = Drawings.head(0, 0.9);
        Face far = new Face(2, 2, 39, 49, face.landmarks, 0.99);
        Face near = new Face(2, 2, 41, 51, face.landmarks, 0.9);
        assertEquals(Collections.singletonList(Hint.NO_FACE), look().hints);
        assertEquals(Collections.singletonList(Hint.MULTIPLE_FACES), look(face, near).hints);
        assertNull(look(face, near).crop());
        assertTrue("half as wide counts no more", look(far, face).isGood());
    }

    /** Sees the face that it was told in each picture, and in looks at it what was said for each, in turn. */
    private static final class Looks implements FaceFinder {
        private final Face face;
        private final Face[] seen;
        private int next;

        Looks(Face face, Face... seen) {
            this.face = face;
            this.seen = seen;
        }

        @Override
        public java.util.List<Face> find(Frame searched) {
            return Collections.singletonList(face);
        }

        @Override
        public java.util.List<Face> search(Frame searched) {
            Face shown = next < seen.length ? seen[next] : null;
            next++;
            return shown == null ? Collections.<Face>emptyList() : Collections.singletonList(shown);
        }

        @Override
        public void close() {}
    }

    @Test
    public void aFaceWhoseLooksDisagreeIsNotUpright() {
        Face face = Drawings.head(0, 0.9);
        Face straight = Drawings.head(0, 0.89);
        Face nearly = Drawings.head(0, 0.875);
        FaceFinder torn = new Looks(face, straight, null, null, null, nearly);
        assertEquals(Collections.singletonList(Hint.ROLLED), new FaceReader(torn).look(frame).hints);
        FaceFinder sure = new Looks(face, straight, null, null, null, Drawings.head(0, 0.865));
        assertTrue(new FaceReader(sure).look(frame).isGood());
        FaceFinder beside = new Looks(face, straight, nearly);
        assertTrue("an eighth of a turn is no other way up", new FaceReader(beside).look(frame).isGood());
        assertEquals(Collections.singletonList(Hint.ROLLED), new FaceReader(new Looks(face)).look(frame).hints);
    }

    @Test
    public void onlyAFaceThatIsNotSurelyUprightIsLookedAtFromAllSides() {
        Face sure = Drawings.head(0, 0.91);
        Face unsure = Drawings.head(0, 0.9);
        assertEquals(1, looksAt(sure, sure));
        assertEquals("unsure as it was found", 8, looksAt(unsure, sure));
        assertEquals("unsure at one size", 8, looksAt(sure, unsure));
    }

    private int looksAt(Face found, Face straight) {
        Looks looks = new Looks(found, straight);
        assertTrue(new FaceReader(looks).look(frame).isGood());
        return looks.next;
    }

    @Test
    public void aFaceUpsideDownIsSeenUpright() {
        Face face = Drawings.head(0, 0.9);
        Face[] looks = new Face[9];
        looks[0] = Drawings.head(0, 0.8);
        looks[4] = face;
        looks[8] = new Face(200, 190, 80, 100, Drawings.head(0, 0.9).landmarks, 0.91);
        Look look = new FaceReader(new Looks(face, looks)).look(frame);
        assertTrue(look.hints.toString(), !look.hints.contains(Hint.ROLLED));
        assertEquals("the box is as it was found", face.x, look.face.x, 0);
        assertTrue("left and right are where the head has them", look.face.landmarks[0] > look.face.landmarks[2]);
        looks[8] = null;
        assertEquals(Hint.ROLLED, new FaceReader(new Looks(face, looks)).look(frame).hints.get(0));
    }

    @Test
    public void landmarksThatAreNoNumbersAreAReason() {
        double[] landmarks = new double[10];
        Arrays.fill(landmarks, Double.NaN);
        Look look = look(new Face(Double.NaN, 0, 10, 10, landmarks, Double.NaN));
        assertEquals(Collections.singletonList(Hint.LANDMARKS), look.hints);
        Face head = Drawings.head(0, 0.9);
        Look outside = look(new Face(Double.NaN, Double.NaN, Double.NaN, 1, head.landmarks, Double.NaN));
        assertEquals(Arrays.asList(Hint.ROLLED, Hint.UNCLEAR, Hint.CUT_OFF), outside.hints);
    }

    @Test
    public void facesAnywhereAreJudgedWithoutFailing() {
        for (double at : new double[] {-1e30, -1e9, -200, 200, 1e9, 1e30}) {
            for (double scale : new double[] {1e-6, 0.05, 3, 1e6}) {
                double[] landmarks = Drawings.head(0, 1).landmarks.clone();
                for (int i = 0; i < 10; i++) {
                    landmarks[i] = landmarks[i] * scale + at;
                }
                Look look = look(new Face(at, at, scale, scale, landmarks, 0.9));
                assertFalse(look.isGood());
            }
        }
    }

    @Test
    public void aHintTakesTwoLooksToChange() {
        FrameJudge judge = new FrameJudge();
        assertNull(judge.see(with(Hint.TOO_DARK)));
        assertEquals(Hint.TOO_DARK, judge.see(with(Hint.TOO_DARK)));
        assertEquals("one look changes nothing", Hint.TOO_DARK, judge.see(with(Hint.BLURRED)));
        assertEquals(Hint.TOO_DARK, judge.see(with()));
        assertEquals(Hint.TOO_DARK, judge.see(with(Hint.BLURRED)));
        assertEquals(Hint.BLURRED, judge.see(with(Hint.BLURRED)));
    }

    @Test
    public void aHintStaysWhileItIsOneOfTheReasons() {
        FrameJudge judge = new FrameJudge();
        judge.see(with(Hint.TOO_DARK));
        judge.see(with(Hint.TOO_DARK));
        for (int i = 0; i < 5; i++) {
            assertEquals(Hint.TOO_DARK, judge.see(with(Hint.TOO_SMALL, Hint.TOO_DARK)));
        }
        judge.see(with(Hint.TOO_SMALL));
        assertEquals(Hint.TOO_SMALL, judge.see(with(Hint.TOO_SMALL)));
    }

    @Test
    public void itIsReadyAfterTwoGoodLooksInARow() {
        FrameJudge judge = new FrameJudge();
        assertFalse(judge.isReady());
        judge.see(with());
        assertFalse(judge.isReady());
        judge.see(with(Hint.BLURRED));
        judge.see(with());
        assertFalse(judge.isReady());
        assertNull(judge.see(with()));
        assertTrue(judge.isReady());
        judge.reset();
        assertFalse(judge.isReady());
    }
}
