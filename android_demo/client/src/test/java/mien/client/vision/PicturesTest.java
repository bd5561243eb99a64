package mien.client.vision;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Vectors;
import org.junit.Test;

/** Pictures become the pixels, crops and measures that Python makes of them. */
public class PicturesTest {
    private final Vectors file;

    public PicturesTest() throws Exception {
        file = Vectors.load("golden/client/vision.json");
    }

    @Test
    public void framesOfAnyStrideStandUprightInColour() {
        for (int i = 0; i < file.at("frames").size(); i++) {
            Vectors each = file.at("frames").at(i);
            Yuv yuv = yuv(each);
            for (int t = 0; t < each.at("turned").size(); t++) {
                Vectors turned = each.at("turned").at(t);
                int rotation = turned.at("rotation").word();
                boolean isMirrored = turned.at("mirrored").flag();
                Frame frame = yuv.upright(rotation, isMirrored);
                String what = yuv + " by " + rotation + (isMirrored ? " mirrored" : "");
                assertEquals(what, turned.at("width").word(), frame.width);
                assertEquals(what, turned.at("height").word(), frame.height);
                assertArrayEquals(what, turned.at("rgb").bytes(), frame.pixels());
                assertArrayEquals(what, turned.at("grey").bytes(), yuv.uprightLuminance(rotation, isMirrored));
            }
        }
    }

    private static Yuv yuv(Vectors frame) {
        Yuv.Plane[] planes = new Yuv.Plane[3];
        for (int i = 0; i < 3; i++) {
            Vectors plane = frame.at("planes").at(i);
            int[] strides = plane.at("strides").words();
            planes[i] = new Yuv.Plane(ByteBuffer.wrap(plane.at("bytes").bytes()), strides[0], strides[1]);
        }
        return new Yuv(frame.at("width").word(), frame.at("height").word(), planes[0], planes[1], planes[2]);
    }

    @Test
    public void sizesChangeAsInOpenCv() {
        for (int i = 0; i < file.at("resized").size(); i++) {
            Vectors each = file.at("resized").at(i);
            int[] from = each.at("from").words();
            int[] to = each.at("to").words();
            Frame resized = Resizing.to(Drawings.pattern(from[0], from[1]), to[0], to[1]);
            assertClose(from[0] + " to " + to[0], each.at("rgb").bytes(), resized.pixels());
        }
    }

    @Test
    public void cropsAreAlignedAsInPython() {
        for (int i = 0; i < file.at("crops").size(); i++) {
            Vectors each = file.at("crops").at(i);
            int[] from = each.at("from").words();
            Frame frame = Drawings.pattern(from[0], from[1]);
            byte[] crop = Aligner.crop(frame, new Face(0, 0, 1, 1, each.at("landmarks").reals(), 1));
            assertEquals(3 * Aligner.SIDE * Aligner.SIDE, crop.length);
            assertClose("crop " + i, each.at("sample").bytes(), sample(crop));
        }
    }

    private static byte[] sample(byte[] crop) {
        byte[] sample = new byte[3 * 14 * 14];
        int at = 0;
        for (int y = 3; y < Aligner.SIDE; y += 8) {
            for (int x = 3; x < Aligner.SIDE; x += 8, at += 3) {
                System.arraycopy(crop, 3 * (y * Aligner.SIDE + x), sample, at, 3);
            }
        }
        return sample;
    }

    /** Nearly all are equal, and the rest is one grey level apart. */
    private static void assertClose(String what, byte[] expected, byte[] actual) {
        assertEquals(what, expected.length, actual.length);
        int apart = 0;
        for (int i = 0; i < expected.length; i++) {
            int difference = Math.abs((expected[i] & 0xff) - (actual[i] & 0xff));
            assertTrue(what + " differs by " + difference, difference <= 1);
            apart += difference;
        }
        assertTrue(what + " differs in " + apart + " of " + expected.length, apart <= 1 + expected.length / 100);
    }

    @Test
    public void landmarksWithoutADirectionAreRefused() {
        List<double[]> wrong = new ArrayList<>();
        for (int i = 0; i < file.at("no_direction").size(); i++) {
            wrong.add(file.at("no_direction").at(i).reals());
        }
        for (double value : new double[] {Double.NaN, Double.POSITIVE_INFINITY, 1e200, Double.MAX_VALUE}) {
            double[] landmarks = Drawings.head(0, 1).landmarks.clone();
            landmarks[3] = value;
            wrong.add(landmarks);
        }
        Frame frame = Drawings.good(0);
        for (double[] landmarks : wrong) {
            Face face = new Face(0, 0, 1, 1, landmarks, 1);
            Raised.by(ErrorCode.LOW_QUALITY, "no direction", () -> Aligner.crop(frame, face));
            assertNull(Geometry.of(frame, face));
        }
    }

    @Test
    public void looksOfCropsAreMeasuredAsInPython() {
        for (int i = 0; i < file.at("appearances").size(); i++) {
            Vectors each = file.at("appearances").at(i);
            int[] drawing = each.at("drawing").words();
            Frame crop = Drawings.squares(Aligner.SIDE, Aligner.SIDE, drawing[0], drawing[1], drawing[2], drawing[3]);
            Appearance look = Appearance.of(crop.pixels());
            double[] measures = {look.sharpness, look.highlight, look.saturated, look.contrast};
            assertArrayEquals(each.at("measures").reals(), measures, 1e-3);
            List<Hint> hints = new ArrayList<>();
            look.judge(hints);
            assertWords(each.at("words"), hints);
        }
    }

    @Test
    public void facesLieInPicturesAsInPython() {
        for (int i = 0; i < file.at("geometries").size(); i++) {
            Vectors each = file.at("geometries").at(i);
            int[] size = each.at("frame").words();
            double[] box = each.at("box").reals();
            double score = each.at("score").real();
            Face face = new Face(box[0], box[1], box[2], box[3], each.at("landmarks").reals(), score);
            Geometry seen = Geometry.of(Frame.blank(size[0], size[1]), face);
            double[] measures = {
                seen.eyeDistancePx, seen.yawDeg, seen.pitchDeg, seen.rollDeg, seen.visible,
                Math.min(seen.landmarkErrorPx, 1e6)
            };
            assertArrayEquals(each.at("measures").reals(), measures, 1e-3);
            List<Hint> hints = new ArrayList<>();
            seen.judge(hints);
            assertWords(each.at("words"), hints);
        }
    }

    private static void assertWords(Vectors words, List<Hint> hints) {
        List<String> codes = new ArrayList<>();
        for (Hint hint : hints) {
            codes.add(hint.code());
        }
        assertEquals(words.raw(), codes);
    }

    @Test
    public void hintsArePythons() {
        int known = 0;
        for (Hint hint : Hint.values()) {
            if (file.at("hints").has(hint.code())) {
                assertEquals(file.at("hints").at(hint.code()).text(), hint.text());
                known++;
            }
        }
        assertEquals(file.at("hints").size(), known);
        assertEquals(file.at("no_single_face").at(0).text(), Hint.NO_FACE.code());
        assertEquals(file.at("no_single_face").at(1).text(), Hint.MULTIPLE_FACES.code());
        assertEquals("no hint is left over", known + 2, Hint.values().length);
    }

    @Test
    public void aPictureTurnedFourTimesIsItself() {
        Frame frame = Drawings.pattern(5, 3);
        Frame turned = frame;
        for (int i = 0; i < 4; i++) {
            Frame next = turned.turned(1);
            assertEquals(turned.height, next.width);
            assertEquals("anticlockwise", turned.at(turned.width - 1, 0, 0), next.at(0, 0, 0));
            turned = next;
        }
        assertArrayEquals(frame.pixels(), turned.pixels());
        assertNotEquals(frame.at(0, 0, 0), frame.turned(2).at(0, 0, 0));
        assertArrayEquals(frame.turned(1).turned(1).pixels(), frame.turned(2).pixels());
        assertArrayEquals(frame.turned(1).turned(2).pixels(), frame.turned(3).pixels());
    }

    @Test
    public void framesThatCannotBeAreRefused() {
        Raised.by(ErrorCode.IMAGE, "no pixel", () -> Frame.of(0, 1, new byte[0]));
        Raised.by(ErrorCode.IMAGE, "less than nothing", () -> Frame.of(-1, -1, new byte[3]));
        Raised.by(ErrorCode.IMAGE, "too large", () -> Frame.of(Frame.MAX_SIDE + 1, 1, new byte[3 * (Frame.MAX_SIDE + 1)]));
        Raised.by(ErrorCode.IMAGE, "cut off", () -> Frame.of(2, 2, new byte[11]));
        Raised.by(ErrorCode.CONFIG, "an angle", () -> small(4, 1, 2, 1).upright(45, false));
        small(4, 1, 2, 1).upright(-90, true);
        small(4, 1, 2, 1).upright(450, true);
        int[][] strides = {{4, 0, 2, 1}, {0, 1, 2, 1}, {-4, 1, 2, 1}, {3, 1, 2, 1}, {4, 2, 2, 1}, {4, 1, 1, 1}, {4, 1, 2, 2},
            {4, 1, Integer.MAX_VALUE, 1}, {Integer.MAX_VALUE, Integer.MAX_VALUE, 2, 1}, {4, 1, 2, Integer.MIN_VALUE}};
        for (int[] each : strides) {
            Raised.by(ErrorCode.IMAGE, "strides", () -> small(each[0], each[1], each[2], each[3]));
        }
    }

    @Test
    public void anyStridesAndBuffersMakeAFrameOrAreRefused() {
        Random random = new Random(7);
        int numMade = 0;
        for (int i = 0; i < 3000; i++) {
            int width = random.nextInt(7) - 1;
            int height = random.nextInt(7) - 1;
            try {
                Frame frame = new Yuv(width, height, plane(random), plane(random), plane(random))
                        .upright(90 * random.nextInt(4), random.nextBoolean());
                assertEquals(3 * width * height, frame.pixels().length);
                numMade++;
            } catch (MienException error) {
                assertEquals(error.getMessage(), ErrorCode.IMAGE, error.code());
            }
        }
        assertTrue(numMade + " frames", numMade > 100 && numMade < 2000);
    }

    private static Yuv.Plane plane(Random random) {
        ByteBuffer buffer = ByteBuffer.allocate(random.nextInt(64));
        buffer.position(random.nextInt(Math.min(4, buffer.capacity() + 1)));
        return new Yuv.Plane(buffer, random.nextInt(14) - 1, random.nextInt(3));
    }

    /** 4x4 pixels with as many bytes as strides of 4, 1, 2 and 1 need. */
    private static Yuv small(int row, int pixel, int colourRow, int colourPixel) {
        Yuv.Plane light = new Yuv.Plane(ByteBuffer.allocate(16), row, pixel);
        Yuv.Plane colour = new Yuv.Plane(ByteBuffer.allocateDirect(4), colourRow, colourPixel);
        return new Yuv(4, 4, light, colour, colour);
    }

    @Test
    public void takingABufferMovesNothingInIt() {
        ByteBuffer buffer = ByteBuffer.allocate(20);
        buffer.position(4);
        buffer.put(4, (byte) 7);
        Yuv.Plane light = new Yuv.Plane(buffer, 4, 1);
        buffer.put(4, (byte) 9);
        Yuv.Plane colour = new Yuv.Plane(ByteBuffer.allocate(4), 2, 1);
        assertEquals(7, new Yuv(4, 4, light, colour, colour).uprightLuminance(0, false)[0]);
        assertEquals(4, buffer.position());
    }

    @Test
    public void nothingOfAFaceIsInATextOfIt() {
        Frame frame = Drawings.good(0);
        assertEquals("Frame(160x150)", frame.toString());
        assertEquals("Face(***)", Drawings.head(0, 1).toString());
        Look look = new FaceReader(new FixedFinder(Drawings.head(0, 0.9))).look(frame);
        assertEquals("Look([])", look.toString());
        frame.wipe();
        assertEquals(0, frame.at(20, 20, 0));
    }
}
