package mien.client.vision;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.train.Engine;
import mien.client.train.Tensor;
import org.junit.Test;

/** What the network says becomes faces, whatever it says; numbers computed by hand. */
public class FinderTest {
    /** A network that says the same whatever it sees: in each cell of stride 8 that is set, a face. */
    private static final class Said implements Engine {
        final Map<Integer, float[]> cells = new HashMap<>();
        final List<long[]> asked = new ArrayList<>();
        int cut;
        Tensor input;

        /** (share of being a face, of being an object, box x, y, log width, log height, landmarks' x, y in cells). */
        void says(int cell, float... numbers) {
            cells.put(cell, numbers);
        }

        @Override
        public Map<String, Tensor> run(
                String kind, String stage, List<String> part, String form, Map<String, Tensor> feed) {
            input = feed.get("input");
            asked.add(input.shape);
            Map<String, Tensor> outputs = new HashMap<>();
            for (int stride : new int[] {8, 16, 32}) {
                int count = (int) (input.shape[2] / stride * (input.shape[3] / stride)) - cut;
                float[][] values = {new float[count], new float[count], new float[4 * count], new float[10 * count]};
                for (Map.Entry<Integer, float[]> each : stride == 8 ? cells.entrySet() : new HashMap<Integer, float[]>().entrySet()) {
                    float[] said = each.getValue();
                    values[0][each.getKey()] = said[0];
                    values[1][each.getKey()] = said[1];
                    System.arraycopy(said, 2, values[2], 4 * each.getKey(), 4);
                    for (int i = 0; i < 10; i++) {
                        values[3][10 * each.getKey() + i] = said[6 + i % 2];
                    }
                }
                String[] names = {"cls_", "obj_", "bbox_", "kps_"};
                for (int i = 0; i < 4; i++) {
                    outputs.put(names[i] + stride, Tensor.vector(values[i]));
                }
            }
            return outputs;
        }

        @Override
        public boolean holds(String kind, String stage) {
            return true;
        }

        @Override
        public void close() {}
    }

    private final Said said = new Said();
    private final YuNet finder = new YuNet(said);

    @Test
    public void aCellBecomesAFace() {
        // 64x40 pixels are padded to 64x64: 8 cells a row. Cell 10 is column 2 of row 1.
        said.says(10, 0.81f, 1, 0.5f, 0.25f, (float) Math.log(3), (float) Math.log(2), 1, -0.5f);
        Face face = finder.find(Drawings.pattern(64, 40)).get(0);
        assertEquals(0.9, face.score, 1e-6);
        assertEquals(20 - 12, face.x, 1e-5);
        assertEquals(10 - 8, face.y, 1e-5);
        assertEquals(24, face.width, 1e-5);
        assertEquals(16, face.height, 1e-5);
        assertEquals(24, face.landmarks[0], 1e-5);
        assertEquals(4, face.landmarks[1], 1e-5);
        assertEquals(1, said.asked.size());
    }

    @Test
    public void theNetworkSeesBlueFirstAndBlackBeyondTheEdge() {
        said.says(0, 1, 1, 0, 0, 0, 0, 0, 0);
        Frame frame = Drawings.pattern(40, 40);
        finder.find(frame);
        assertEquals(frame.at(3, 5, 2), said.input.values()[5 * 64 + 3], 0);
        assertEquals(frame.at(3, 5, 0), said.input.values()[2 * 64 * 64 + 5 * 64 + 3], 0);
        assertEquals(0, said.input.values()[5 * 64 + 40], 0);
        assertEquals(0, said.input.values()[40 * 64], 0);
    }

    @Test
    public void whereNothingIsFoundItLooksAgainAtTwiceTheSize() {
        assertTrue(finder.find(Drawings.pattern(64, 40)).isEmpty());
        assertEquals(64, said.asked.get(0)[3]);
        assertEquals(128, said.asked.get(1)[3]);
        assertEquals(96, said.asked.get(1)[2]);
        assertTrue(finder.find(Drawings.pattern(1300, 20)).isEmpty());
        assertEquals("the longest side is 640", 640, said.asked.get(2)[3]);
        assertEquals(1280, said.asked.get(3)[3]);
    }

    @Test
    public void facesOfALargePictureAreInItsOwnPixels() {
        said.says(0, 1, 1, 1, 1, (float) Math.log(2), (float) Math.log(2), 1, 1);
        Face face = finder.find(Drawings.pattern(1280, 20)).get(0);
        assertEquals(32, face.width, 1e-5);
        assertEquals((8 + 0.5) * 2 - 0.5, face.landmarks[0], 1e-5);
    }

    @Test
    public void ofFacesThatOverlapTheSurestStays() {
        float[] size = {(float) Math.log(4), (float) Math.log(4)};
        said.says(20, 0.64f, 1, 0, 0, size[0], size[1], 0, 0);
        said.says(21, 1, 1, 0, 0, size[0], size[1], 0, 0);
        said.says(39, 0.49f, 1, 0, 0, size[0], size[1], 0, 0);
        said.says(63, 0.35f, 1, 0, 0, size[0], size[1], 0, 0);
        List<Face> faces = finder.find(Drawings.pattern(64, 64));
        assertEquals("the one beside falls, the one two rows on stays, the faint one is none", 2, faces.size());
        assertEquals(1, faces.get(0).score, 0);
        assertEquals(0.7, faces.get(1).score, 1e-6);
    }

    @Test
    public void whatIsNoNumberIsNoFace() {
        said.says(3, Float.NaN, 1, 0, 0, 0, 0, 0, 0);
        said.says(4, 1, 1, Float.NaN, 0, 0, 0, 0, 0);
        said.says(5, 1, 1, 0, 0, 1e9f, 0, 0, 0);
        said.says(6, 1, 1, 0, 0, 0, 0, Float.NEGATIVE_INFINITY, 0);
        said.says(40, 7, 9, 0, 0, 0, 0, 0, 0);
        List<Face> faces = finder.find(Drawings.pattern(64, 64));
        assertEquals(1, faces.size());
        assertEquals("a share is at most 1", 1, faces.get(0).score, 0);
    }

    @Test
    public void aNetworkOfOtherNumbersIsRefused() {
        said.cut = 1;
        Raised.by(ErrorCode.CORRUPT_DATA, "fewer numbers", () -> finder.find(Drawings.pattern(64, 64)));
        Raised.by(ErrorCode.CORRUPT_DATA, "another file", () -> YuNet.of(new byte[] {1, 2, 3}));
    }

    @Test
    public void pixelsWithoutRoomForAFaceAreNotSearched() {
        assertTrue(finder.find(Drawings.pattern(1, 1)).isEmpty());
        assertTrue(finder.find(Drawings.pattern(9, 4000)).isEmpty());
        assertTrue(said.asked.isEmpty());
        assertTrue(finder.find(Drawings.pattern(4096, 10)).isEmpty());
    }
}
