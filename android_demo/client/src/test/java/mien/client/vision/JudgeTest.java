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

    @Test
    public void aFaceThatIsSurerInATurnedPictureIsNotUpright() {
        Frame wide = Drawings.squares(200, 150, 16, 100, 80, 0);
        Face unsure = Drawings.head(0, 0.88);
        Face sure = Drawings.head(0, 0.92);
        FaceFinder finder = new FaceFinder() {
            @Override
            public java.util.List<Face> find(Frame searched) {
                return Collections.singletonList(searched.width == wide.width && searched == wide ? unsure : sure);
            }

            @Override
            public void close() {}
        };
        assertEquals(Collections.singletonList(Hint.ROLLED), new FaceReader(finder).look(wide).hints);
        assertTrue("only a little surer", look(Drawings.head(0, 0.88)).isGood());
        FixedFinder still = new FixedFinder(sure);
        new FaceReader(still).look(wide);
        assertEquals("a sure face is not looked for again", 1, still.numLooks);
    }

    @Test
    public void landmarksThatAreNoNumbersAreAReason() {
        double[] landmarks = new double[10];
        Arrays.fill(landmarks, Double.NaN);
        Look look = look(new Face(Double.NaN, 0, 10, 10, landmarks, Double.NaN));
        assertEquals(Collections.singletonList(Hint.LANDMARKS), look.hints);
        Face head = Drawings.head(0, 0.9);
        Look outside = look(new Face(Double.NaN, Double.NaN, Double.NaN, 1, head.landmarks, Double.NaN));
        assertEquals(Arrays.asList(Hint.UNCLEAR, Hint.CUT_OFF), outside.hints);
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
