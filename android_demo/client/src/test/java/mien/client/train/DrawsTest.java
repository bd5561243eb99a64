package mien.client.train;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;

import mien.client.Vectors;
import mien.client.wire.Fields;
import org.junit.Test;

/** Batches in numpy's order, mirrored as numpy's coins say. */
public class DrawsTest {
    @Test
    public void everyDrawIsNumpys() throws Exception {
        Vectors seeds = Vectors.load("golden/client/draws.json").at("seeds");
        for (int i = 0; i < seeds.size(); i++) {
            Vectors drawn = seeds.at(i);
            Generator random = new Generator(drawn.at("seed").number());
            assertArrayEquals(drawn.at("permutation_of_5").words(), random.permutation(5));
            assertArrayEquals(drawn.at("random").reals(), numbers(random, 3), 0);
            assertArrayEquals(drawn.at("permutation_of_1").words(), random.permutation(1));
            assertArrayEquals(drawn.at("permutation_of_33").words(), random.permutation(33));
            assertArrayEquals(drawn.at("random_after").reals(), numbers(random, 2), 0);
            assertArrayEquals(drawn.at("permutation_of_1000").words(), random.permutation(1000));
            double[] normals = new double[40];
            for (int n = 0; n < 40_000; n++) {
                double normal = random.normal();
                normals[n / 1000] = n % 1000 == 0 ? normal : normals[n / 1000];
            }
            assertArrayEquals(drawn.at("every_1000th_normal_of_40000").reals(), normals, 1e-14);
            assertArrayEquals(
                    drawn.at("permutation_of_6_by_another_word").words(),
                    new Generator(drawn.at("seed").number(), 1).permutation(6));
        }
    }

    @Test
    public void whoIsChosenIsNumpys() throws Exception {
        Vectors choices = Vectors.load("golden/client/draws.json").at("choices");
        for (int i = 0; i < choices.size(); i++) {
            Vectors drawn = choices.at(i);
            int[] chosen = new Generator(drawn.at("seed").number()).choice(drawn.at("n").word(), drawn.at("size").word());
            assertArrayEquals(drawn.at("chosen").words(), chosen);
        }
    }

    private static double[] numbers(Generator random, int size) {
        double[] numbers = new double[size];
        for (int i = 0; i < size; i++) {
            numbers[i] = random.random();
        }
        return numbers;
    }

    @Test
    public void everyBatchIsPythons() throws Exception {
        Vectors schedules = Vectors.load("golden/client/draws.json").at("schedules");
        for (int i = 0; i < schedules.size(); i++) {
            Vectors given = schedules.at(i);
            LocalSpec local = new LocalSpec(Fields.of(given.at("local").raw(), "local"));
            Generator random = new Generator(given.at("seed").number());
            Schedule schedule = new Schedule(local, given.at("num_crops").word(), random);
            Vectors batches = given.at("batches");
            for (int j = 0; j < batches.size(); j++) {
                Batch batch = schedule.next();
                assertArrayEquals(batches.at(j).at("indices").words(), batch.indices);
                assertEquals(batches.at(j).at("rate").real(), batch.rate, 0);
                for (int k = 0; k < batch.mirrored.length; k++) {
                    assertEquals(batches.at(j).at("mirrored").at(k).flag(), batch.mirrored[k]);
                }
            }
            assertFalse(schedule.hasNext());
        }
    }
}
