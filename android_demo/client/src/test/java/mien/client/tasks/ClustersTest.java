package mien.client.tasks;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import org.junit.Test;

/** Pseudo labels and distances are Python's, to the last one. */
public class ClustersTest {
    private static Vectors file() throws Exception {
        return Vectors.load("golden/client/clusters.json");
    }

    private static float[][] embeddings(Vectors set, int dim) {
        float[] all = set.at("embeddings").floats();
        return Rows.rows(new Tensor(all, all.length / dim, dim), dim);
    }

    private static Clusters clusters(Vectors set, String metric) throws Exception {
        return new Clusters(embeddings(set, file().at("dim").word()), metric.equals("cosine"));
    }

    private static double pure(float[][] embeddings, int[] truth, Vectors wanted) {
        return Clusters.pure(
                embeddings,
                truth,
                wanted.at("purity").real(),
                wanted.at("group_images").word(),
                wanted.at("metric").text().equals("cosine"),
                wanted.at("max_levels").word());
    }

    @Test
    public void levelsArePythons() throws Exception {
        Vectors sets = file().at("sets");
        for (int i = 0; i < sets.size(); i++) {
            String what = sets.at(i).at("what").text();
            Vectors levels = sets.at(i).at("levels");
            Clusters clusters = clusters(sets.at(i), "euclidean");
            int count = levels.size();
            for (int level = 0; level < count; level++) {
                assertArrayEquals(what, levels.at(level).words(), clusters.at(level));
                assertArrayEquals(what, levels.at(level).words(), clusters.at(level - count));
            }
            assertArrayEquals(what, levels.at(count - 1).words(), clusters.at(count));
            Raised.by(ErrorCode.CONFIG, "no level " + (-count - 1), () -> clusters.at(-count - 1));
        }
    }

    @Test
    public void labelsWithinADistanceArePythons() throws Exception {
        Vectors sets = file().at("sets");
        for (int i = 0; i < sets.size(); i++) {
            Vectors all = sets.at(i).at("within");
            for (int k = 0; k < all.size(); k++) {
                Vectors wanted = all.at(k);
                Clusters clusters = clusters(sets.at(i), wanted.at("metric").text());
                int[] found = clusters.within(wanted.at("distance").real(), wanted.at("max_levels").word());
                assertArrayEquals(sets.at(i).at("what").text() + " " + k, wanted.at("labels").words(), found);
            }
        }
    }

    @Test
    public void theDistanceThatFindsPeopleAgainIsPythons() throws Exception {
        Vectors sets = file().at("sets");
        for (int i = 0; i < sets.size(); i++) {
            Vectors all = sets.at(i).at("calibrated");
            int[] truth = sets.at(i).at("truth").words();
            for (int k = 0; k < all.size(); k++) {
                Clusters clusters = clusters(sets.at(i), all.at(k).at("metric").text());
                double found = clusters.calibrated(truth, all.at(k).at("max_levels").word());
                assertEquals(sets.at(i).at("what").text() + " " + k, all.at(k).at("distance").real(), found, 0);
            }
            if (all.size() == 0) {
                Clusters clusters = clusters(sets.at(i), "cosine");
                Raised.by(ErrorCode.CONFIG, "two public people", () -> clusters.calibrated(truth, 0));
            }
        }
    }

    @Test
    public void theLargestPureDistanceIsPythons() throws Exception {
        Vectors sets = file().at("sets");
        int refused = 0;
        for (int i = 0; i < sets.size(); i++) {
            Vectors all = sets.at(i).at("pure");
            int[] truth = sets.at(i).at("truth").words();
            float[][] embeddings = embeddings(sets.at(i), file().at("dim").word());
            String what = sets.at(i).at("what").text();
            for (int k = 0; k < all.size(); k++) {
                Vectors wanted = all.at(k);
                double distance = wanted.at("distance").real();
                if (distance > 0) {
                    assertEquals(what + " " + k, distance, pure(embeddings, truth, wanted), 0);
                } else {
                    Raised.by(ErrorCode.CONFIG, "at no distance", () -> pure(embeddings, truth, wanted));
                    refused++;
                }
            }
        }
        assertTrue(refused > 0);
    }

    @Test
    public void whatHasNoDirectionIsRefused() {
        float[][] opposite = {{1, 0}, {-1, 0}};
        assertArrayEquals(new int[] {0, 1}, new Clusters(opposite, false).within(2, 0));
        Raised.by(ErrorCode.NON_FINITE, "no direction", () -> new Clusters(new float[][] {{1, 0}, {0, 0}}, false));
        Raised.by(
                ErrorCode.NON_FINITE, "no direction", () -> new Clusters(new float[][] {{1, 0}, {Float.NaN, 0}}, false));
    }

    @Test
    public void picturesOfSmallClustersAreLeftOutUnlessAllAre() {
        int[] labels = {0, 1, 0, 2, 1, 0};
        assertArrayEquals(new int[] {0, 1, 2, 4, 5}, FedFrUda.largeEnough(labels, 2));
        assertArrayEquals(new int[] {0, 2, 5}, FedFrUda.largeEnough(labels, 3));
        assertArrayEquals(new int[] {0, 1, 2, 3, 4, 5}, FedFrUda.largeEnough(labels, 4));
    }
}
