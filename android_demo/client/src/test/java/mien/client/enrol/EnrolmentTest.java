package mien.client.enrol;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.util.Collections;
import mien.client.ErrorCode;
import mien.client.KnownFaceException;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.enrol.EnrolmentSession.Enrolled;
import mien.client.enrol.EnrolmentSession.Progress;
import mien.client.vision.Drawings;
import mien.client.vision.Face;
import mien.client.vision.FaceReader;
import mien.client.vision.FixedFinder;
import mien.client.vision.Hint;
import org.junit.Test;

/** Nobody is enrolled without consent, in part, or with another person's pictures. */
public class EnrolmentTest {
    private final FixedFinder finder = new FixedFinder();
    private final Kept kept = new Kept();
    private int number;

    /** A gallery that remembers what it was given. */
    private static final class Kept implements Enroller {
        String name;
        byte[][] crops;
        Consent consent;
        int[] strangers = {};
        ErrorCode failure;
        boolean isKnown;

        @Override
        public float[][] embed(byte[][] crops) {
            float[][] rows = new float[crops.length][];
            for (int i = 0; i < rows.length; i++) {
                rows[i] = new float[] {1, 0};
            }
            for (int stranger : strangers) {
                rows[stranger] = new float[] {0, 1};
            }
            return rows;
        }

        @Override
        public double threshold() {
            return 0.4;
        }

        @Override
        public int enrol(String name, byte[][] crops, Consent consent, boolean anyway) {
            if (isKnown && !anyway) {
                throw new KnownFaceException(Collections.singletonList("Eve"), "this is Eve");
            }
            if (failure != null) {
                throw new MienException(failure, "no");
            }
            this.name = name;
            this.consent = consent;
            this.crops = new byte[crops.length][];
            for (int i = 0; i < crops.length; i++) {
                this.crops[i] = crops[i].clone();
            }
            return 7;
        }
    }

    private EnrolmentSession session(int numWanted) {
        return new EnrolmentSession("  Ada ", Consent.RECOGNISE, new FaceReader(finder), kept, numWanted);
    }

    private Progress look(EnrolmentSession session, double yawDeg, int times) {
        finder.faces = Collections.singletonList(Drawings.head(yawDeg, 0.9));
        Progress progress = null;
        for (int i = 0; i < times; i++) {
            progress = session.offer(Drawings.good(number++));
        }
        return progress;
    }

    private EnrolmentSession complete(int numWanted) {
        EnrolmentSession session = session(numWanted);
        double[] yaw = {0, 25, -25};
        for (int i = 0; i < numWanted; i++) {
            look(session, yaw[i % 3], i == 0 ? 2 : 1);
        }
        assertTrue(session.progress().isComplete());
        return session;
    }

    @Test
    public void picturesAreTakenInEachPoseInTurn() {
        EnrolmentSession session = session(4);
        assertEquals(Pose.STRAIGHT, session.progress().pose);
        assertEquals("the first look may be a chance", 0, look(session, 0, 1).numTaken);
        assertEquals(1, look(session, 0, 1).numTaken);
        assertEquals("straight again is not what is wanted", 1, look(session, 5, 3).numTaken);
        assertEquals(Pose.LEFT, session.progress().pose);
        assertEquals("nor is the other side", 1, look(session, -25, 2).numTaken);
        assertEquals("the left of a person is the picture's right", 2, look(session, 25, 1).numTaken);
        assertEquals(Pose.RIGHT, session.progress().pose);
        assertEquals("of four pictures two are straight", 0.5f, session.progress().share(Pose.STRAIGHT), 0);
        assertEquals(1f, session.progress().share(Pose.LEFT), 0);
        assertEquals(0f, session.progress().share(Pose.RIGHT), 0);
        assertEquals(3, look(session, -25, 1).numTaken);
        Progress progress = look(session, 0, 1);
        assertTrue(progress.isComplete());
        assertNull(progress.pose);
        assertEquals("more are not taken", 4, look(session, 25, 2).numTaken);
    }

    @Test
    public void aFaceThatIsKnownIsEnrolledAnywayOrForgotten() {
        kept.isKnown = true;
        EnrolmentSession session = complete(3);
        try {
            session.finish();
            throw new AssertionError("one face under two names");
        } catch (KnownFaceException known) {
            assertEquals(Collections.singletonList("Eve"), known.names);
        }
        assertNull("nothing is stored", kept.name);
        assertEquals(3, session.finish(true).numUsed);
        assertEquals("Ada", kept.name);
        Raised.by(ErrorCode.CONFIG, "is over", () -> session.finish(true));
        EnrolmentSession forgotten = complete(3);
        Raised.by(ErrorCode.ALREADY_EXISTS, "Eve", forgotten::finish);
        forgotten.cancel();
        Raised.by(ErrorCode.CONFIG, "is over", () -> forgotten.finish(true));
    }

    @Test
    public void badPicturesAreNotTakenAndSayWhy() {
        EnrolmentSession session = session(3);
        finder.faces = Collections.<Face>emptyList();
        assertNull(session.offer(Drawings.good(0)).hint);
        assertEquals(Hint.NO_FACE, session.offer(Drawings.good(1)).hint);
        finder.faces = Collections.singletonList(Drawings.head(0, 0.9));
        session.offer(Drawings.squares(160, 150, 16, 20, 9, 0));
        Progress dark = session.offer(Drawings.squares(160, 150, 16, 20, 9, 0));
        assertEquals(Hint.TOO_DARK, dark.hint);
        assertEquals(0, dark.numTaken);
    }

    @Test
    public void theSamePictureCountsOnce() {
        EnrolmentSession session = session(4);
        double[] yaw = {0, 25, -25};
        for (int i = 0; i < 4; i++) {
            finder.faces = Collections.singletonList(Drawings.head(yaw[i % 3], 0.9));
            session.offer(Drawings.good(0));
            session.offer(Drawings.good(0));
        }
        assertEquals("the fourth is the first", 3, session.progress().numTaken);
    }

    @Test
    public void allIsStoredAtOnce() {
        Enrolled enrolled = complete(5).finish();
        assertEquals(7, enrolled.person);
        assertEquals(5, enrolled.numUsed);
        assertEquals(0, enrolled.numRefused);
        assertEquals("Ada", kept.name);
        assertEquals(Consent.RECOGNISE, kept.consent);
        assertFalse(kept.consent.trains());
        assertEquals(5, kept.crops.length);
    }

    @Test
    public void picturesOfAnotherPersonAreLeftOut() {
        kept.strangers = new int[] {1};
        Enrolled enrolled = complete(4).finish();
        assertEquals(3, enrolled.numUsed);
        assertEquals(1, enrolled.numRefused);
        assertEquals(3, kept.crops.length);
    }

    @Test
    public void picturesOfTwoPeopleEnrolNobody() {
        int[][] others = {{3, 4, 5}, {0, 2, 4}, {1, 4}};
        for (int[] each : others) {
            kept.strangers = each;
            Raised.by(ErrorCode.LOW_QUALITY, "two people", complete(6)::finish);
            assertNull(kept.crops);
        }
    }

    @Test
    public void nobodyIsEnrolledInPart() {
        EnrolmentSession early = session(3);
        look(early, 0, 2);
        Raised.by(ErrorCode.CONFIG, "too early", early::finish);
        assertEquals("it goes on", 2, look(early, 25, 1).numTaken);
        kept.strangers = new int[] {0};
        Raised.by(ErrorCode.LOW_QUALITY, "too few of one person", complete(3)::finish);
        kept.strangers = new int[] {};
        kept.failure = ErrorCode.ALREADY_EXISTS;
        EnrolmentSession taken = complete(3);
        Raised.by(ErrorCode.ALREADY_EXISTS, "the name is taken", taken::finish);
        Raised.by(ErrorCode.CONFIG, "it is over", taken::finish);
        EnrolmentSession left = complete(3);
        left.cancel();
        Raised.by(ErrorCode.CONFIG, "it was left", () -> left.offer(Drawings.good(0)));
        assertEquals(0, left.progress().numTaken);
        assertNull(kept.crops);
    }

    @Test
    public void withoutConsentNameOrPicturesItDoesNotBegin() {
        FaceReader reader = new FaceReader(finder);
        Raised.by(ErrorCode.CONFIG, "no consent", () -> new EnrolmentSession("Ada", null, reader, kept, 3));
        Raised.by(ErrorCode.CONFIG, "no name", () -> new EnrolmentSession(" ", Consent.RECOGNISE, reader, kept, 3));
        Raised.by(ErrorCode.CONFIG, "too few", () -> new EnrolmentSession("Ada", Consent.RECOGNISE, reader, kept, 2));
    }

    @Test
    public void strangersAndNamesAreToldAsInPython() throws Exception {
        Vectors file = Vectors.load("golden/client/vision.json");
        for (int i = 0; i < file.at("strangers").size(); i++) {
            Vectors each = file.at("strangers").at(i);
            float[][] features = new float[each.at("features").size()][];
            for (int row = 0; row < features.length; row++) {
                features[row] = each.at("features").at(row).floats();
            }
            double threshold = each.at("threshold").real();
            int[] rows = Strangers.without(features, threshold);
            assertArrayEquals(each.at("kept").words(), rows);
            assertArrayEquals(each.at("second").words(), Strangers.secondGroup(features, rows, threshold));
        }
        Vectors names = file.at("names");
        for (int i = 0; i < names.at("good").size(); i++) {
            Vectors each = names.at("good").at(i);
            assertEquals(each.at(1).text(), Names.clean(each.at(0).text()));
        }
        for (int i = 0; i < names.at("refused").size(); i++) {
            String name = names.at("refused").at(i).text();
            Raised.by(ErrorCode.CONFIG, "name " + i, () -> Names.clean(name));
        }
    }
}
