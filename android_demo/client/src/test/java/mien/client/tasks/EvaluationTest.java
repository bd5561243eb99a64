package mien.client.tasks;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.Collections;
import java.util.EnumSet;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.secagg.Profile;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;
import org.junit.Test;

/** Phones count their comparisons as Python's do, and refuse tasks whose sums would be no histograms. */
public class EvaluationTest {
    private static final int DIM = 3;

    private static Vectors file() throws Exception {
        return Vectors.load("golden/client/evaluation.json");
    }

    private static ContributionLayout layout(TaskSpec task) throws Exception {
        return Given.layout(task, DIM);
    }

    private static float[][] rows(Vectors hex) {
        float[] all = hex.floats();
        return Rows.rows(new Tensor(all, all.length / DIM, DIM), DIM);
    }

    private static float[][][] models(Vectors rows) {
        float[][][] models = new float[rows.size()][][];
        for (int i = 0; i < models.length; i++) {
            models[i] = rows(rows.at(i));
        }
        return models;
    }

    @Test
    public void aPhoneCountsAsPythonsDoes() throws Exception {
        Vectors phones = file().at("phones");
        for (int i = 0; i < phones.size(); i++) {
            Vectors phone = phones.at(i);
            TaskSpec task = Given.task(phone);
            float[][][] everybody = models(phone.at("public"));
            int[] chosen = Evaluation.chosen(task, everybody[0].length);
            for (int model = 0; model < everybody.length; model++) {
                float[][] some = new float[chosen.length][];
                for (int k = 0; k < some.length; k++) {
                    some[k] = everybody[model][chosen[k]];
                }
                everybody[model] = some;
            }
            byte[] sent =
                    Evaluation.contribution(
                            layout(task), task, models(phone.at("own")), phone.at("labels").words(), everybody);
            assertArrayEquals(phone.at("what").text(), phone.at("contribution").floats(), Bytes.floats(sent), 0);
        }
    }

    @Test
    public void lanesArePythonsOfOneModelAndOfTwo() throws Exception {
        Vectors contributions = file().at("contributions");
        TaskSpec alone = Given.task(file().at("phones").at(0));
        TaskSpec paired = Given.task(file().at("phones").at(5));
        assertEquals(contributions.at("alone").at("sha256").text(), layout(alone).sha256);
        assertEquals(contributions.at("alone").at("size").number(), layout(alone).size);
        assertEquals(contributions.at("paired").at("sha256").text(), layout(paired).sha256);
        assertEquals(0, layout(paired).numMetrics());
        assertEquals(Collections.emptyList(), Methods.otherModels(alone));
        assertEquals(Collections.singletonList(String.join("", Collections.nCopies(32, "5c"))), Methods.otherModels(paired));
    }

    @Test
    public void whatWouldBeNoHistogramIsRefused() throws Exception {
        Vectors refused = file().at("refused");
        for (int i = 0; i < refused.size(); i++) {
            byte[] json = Bytes.utf8(refused.at(i).at("json").text());
            String why = refused.at(i).at("why").text();
            ErrorCode code = why.equals("an option that is not there") ? ErrorCode.VERSION : ErrorCode.CONFIG;
            Raised.by(code, why, () -> Methods.check(new TaskSpec(json)));
        }
    }

    @Test
    public void nothingIsTrainedAndAnOwnerMaySayNo() throws Exception {
        TaskSpec task = Given.task(file().at("phones").at(0));
        assertFalse(task.trains());
        assertTrue(task.measures());
        Disclosure told = new Disclosure(task, layout(task), 3, 1);
        assertTrue(told.measures);
        assertEquals(1, told.weight);
        assertEquals(0, told.numParameters);
        Agreement agreement = new Agreement(4, EnumSet.of(Profile.MALICIOUS_SERVER));
        agreement.check(task);
        Agreement without = agreement.withoutMeasuring();
        Raised.by(ErrorCode.CONFIG, "measures models", () -> without.check(task));
        assertTrue(Methods.forPeople(2, agreement).contains(task.method));
        assertFalse(Methods.forPeople(2, without).contains(task.method));
    }
}
