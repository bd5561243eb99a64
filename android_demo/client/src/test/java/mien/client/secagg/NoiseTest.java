package mien.client.secagg;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Collections;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;
import org.junit.Test;

/** A device's share of noise is drawn as in Python from the same bytes, and nothing else of it is told. */
public class NoiseTest {
    /** Chance that begins with some bytes and goes on with the words of a seed. */
    private static final class Stream implements RandomBytes {
        private final WordStream words;
        private byte[] begin;

        Stream(byte[] seed, byte[] begin) {
            words = new WordStream(seed);
            this.begin = begin;
        }

        @Override
        public byte[] take(int size) {
            int given = Math.min(size, begin.length);
            ByteBuffer taken = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
            taken.put(begin, 0, given);
            begin = Arrays.copyOfRange(begin, given, begin.length);
            for (int word : words.take((size - given) / 4)) {
                taken.putInt(word);
            }
            return taken.array();
        }
    }

    private static long[] longs(Vectors list) {
        long[] values = new long[list.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = list.at(i).number();
        }
        return values;
    }

    @Test
    public void sharesAreThoseOfPython() throws Exception {
        Vectors shares = Vectors.load("golden/client/noise.json").at("shares");
        for (int i = 0; i < shares.size(); i++) {
            Vectors given = shares.at(i);
            Stream chance = new Stream(given.at("seed").bytes(), given.at("begin").bytes());
            long[] drawn =
                    Noise.share(given.at("size").word(), given.at("sigma").real(), given.at("num_honest").word(), chance);
            assertArrayEquals(longs(given.at("drawn")), drawn);
        }
    }

    @Test
    public void whatDoublesCannotDecideIsDecidedInDecimals() throws Exception {
        Vectors cases = Vectors.load("golden/client/noise.json").at("decided_in_decimals");
        for (int i = 0; i < cases.size(); i++) {
            Vectors given = cases.at(i);
            Stream chance = new Stream(given.at("seed").bytes(), new byte[0]);
            Noise noise = new Noise(given.at("mean").real(), chance, given.at("doubt").real());
            assertArrayEquals(longs(given.at("drawn")), noise.draw(given.at("drawn").size()));
        }
    }

    @Test
    public void noiseBeyondWhatFitsIsRefused() {
        RandomBytes none = size -> new byte[size];
        for (double sigma : new double[] {0, 1e9, Double.NaN, Double.POSITIVE_INFINITY}) {
            Raised.by(ErrorCode.CONFIG, "sigma " + sigma, () -> Noise.share(1, sigma, 1, none));
        }
    }

    @Test
    public void vectorsUnderDifferentialPrivacy() throws Exception {
        Vectors cases = Vectors.load("golden/client/noise.json").at("protected");
        for (int i = 0; i < cases.size(); i++) {
            Vectors given = cases.at(i);
            Fields task = Json.object(Bytes.utf8(given.at("task_json").text()), "the task");
            DpSpec dp = new DpSpec(task.object("privacy").object("dp"));
            RoundConfig terms = RoundConfig.parse(given.at("config").bytes());
            dp.checkTerms(terms);
            Addends said = new Addends(1, given.at("update").floats(), given.at("metrics").reals());
            Addends told = dp.protect(said, terms, new Stream(given.at("seed").bytes(), new byte[0]));
            int[] vector =
                    VectorCodec.encode(
                            told, terms, given.at("binding").bytes(), new WordStream(given.at("rounding_seed").bytes()));
            assertArrayEquals(given.at("vector").bytes(), VectorCodec.pack(vector, 32));
            assertEquals("metrics are zeros, but for how those round", 0, told.metrics[0], 0);
            Addends heavy = new Addends(2, said.update, said.metrics);
            Raised.by(ErrorCode.CONFIG, "a weight would tell", () -> dp.protect(heavy, terms, null));
        }
    }

    @Test
    public void termsThatDoNotKeepThePromise() throws Exception {
        Vectors cases = Vectors.load("golden/client/noise.json").at("protected");
        DpSpec[] promised = new DpSpec[2];
        RoundConfig[] terms = new RoundConfig[2];
        for (int i = 0; i < 2; i++) {
            Fields task = Json.object(Bytes.utf8(cases.at(i).at("task_json").text()), "the task");
            promised[i] = new DpSpec(task.object("privacy").object("dp"));
            terms[i] = RoundConfig.parse(cases.at(i).at("config").bytes());
        }
        for (int i = 0; i < 2; i++) {
            int other = 1 - i;
            DpSpec dp = promised[i];
            Raised.by(ErrorCode.VIOLATION, "another noise", () -> dp.checkTerms(terms[other]));
        }
    }

    @Test
    public void aPromiseThatBoundsNothingIsRefusedAsInPython() throws Exception {
        String task = Vectors.load("golden/client/noise.json").at("protected").at(0).at("task_json").text();
        String[][] changes = {
            {"\"delta\":1e-06", "\"delta\":0.1", "\"delta\":0.999", "\"delta\":1.0", "\"delta\":9e-31"},
            {"\"epsilon\":8.0", "\"epsilon\":1001.0", "\"epsilon\":0.0"},
            {"\"noise_multiplier\":1.5", "\"noise_multiplier\":1001.0", "\"noise_multiplier\":-1.0"},
            {"\"max_participations\":2", "\"max_participations\":100001"},
            {"\"min_separation\":3", "\"min_separation\":100001"},
            {"\"clip_lr\":0.2", "\"clip_lr\":0.0", "\"clip_lr\":11.0"},
        };
        promised(task);
        promised(task.replace(changes[0][0], "\"delta\":0.0999"));
        for (String[] change : changes) {
            assertTrue(change[0], task.contains(change[0]));
            for (int i = 1; i < change.length; i++) {
                String changed = task.replace(change[0], change[i]);
                Raised.by(ErrorCode.CONFIG, change[i], () -> promised(changed));
            }
        }
    }

    private static DpSpec promised(String taskJson) {
        return new DpSpec(Json.object(Bytes.utf8(taskJson), "the task").object("privacy").object("dp"));
    }

    @Test
    public void noMoreSumsThanPromised() throws Exception {
        Vectors given = Vectors.load("golden/client/noise.json").at("protected").at(0);
        Fields task = Json.object(Bytes.utf8(given.at("task_json").text()), "the task");
        DpSpec two = new DpSpec(task.object("privacy").object("dp")); // three rounds apart
        two.checkPromise(Collections.<Long>emptyList(), 1);
        two.checkPromise(Collections.singletonList(1L), 4);
        Raised.by(ErrorCode.BUDGET_EXCEEDED, "too soon", () -> two.checkPromise(Collections.singletonList(1L), 3));
        Raised.by(ErrorCode.BUDGET_EXCEEDED, "a third", () -> two.checkPromise(Arrays.asList(1L, 4L), 9));
    }
}
