package mien.client.tasks;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.model.ModelSpec;
import mien.client.model.ParameterPart;
import mien.client.model.Parameters;
import mien.client.secagg.Profile;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;
import org.junit.Test;

/** Statistics add up as Python's, and tasks whose sums would tell too much are refused. */
public class StatisticsTest {
    private static final int DIM = 5;
    /** Python's are rounded to float32 once, from sums in another order. */
    private static final float ROUNDING = 1e-7f;

    private static Vectors file() throws Exception {
        return Vectors.load("golden/client/statistics.json");
    }

    private static ParameterPart part(String pattern) throws Exception {
        ModelSpec spec = ModelSpec.parse(Bytes.utf8(file().at("spec_json").text()));
        return spec.layout.part(Collections.singletonList(pattern));
    }

    private static TaskSpec task(Vectors given) {
        TaskSpec task = new TaskSpec(Bytes.utf8(given.at("json").text()));
        Methods.check(task);
        return task;
    }

    private static byte[] contribution(Vectors phone, ParameterPart adapter) {
        TaskSpec task = task(phone);
        float[] all = phone.at("features").floats();
        float[][] features = Rows.rows(new Tensor(all, all.length / DIM, DIM), DIM);
        ContributionLayout layout = new Statistics().layout(task, adapter, DIM);
        int[] labels = phone.at("labels").words();
        return Statistics.contribution(layout, task, features, labels, null, phone.at("seed").number());
    }

    @Test
    public void aPhoneAddsWhatPythonsAdds() throws Exception {
        Vectors phones = file().at("phones");
        for (int i = 0; i < phones.size(); i++) {
            float[] sent = Bytes.floats(contribution(phones.at(i), part("adapter.*")));
            assertArrayEquals(
                    phones.at(i).at("what").text(), phones.at(i).at("contribution").floats(), sent, ROUNDING);
        }
    }

    @Test
    public void lanesArePythons() throws Exception {
        ContributionLayout layout = new Statistics().layout(task(file().at("phones").at(0)), part("adapter.*"), DIM);
        assertEquals(file().at("contribution_sha256").text(), layout.sha256);
        assertEquals(file().at("contribution_size").number(), layout.size);
        assertEquals(layout.size - 2, layout.updateSize());
        assertEquals(0, layout.numMetrics());
    }

    @Test
    public void behindAGateAPhoneAddsTheRecognisersOwnFeatures() throws Exception {
        Vectors gated = file().at("gated");
        ModelSpec spec = ModelSpec.parse(Bytes.utf8(gated.at("spec_json").text()));
        ParameterPart adapter = spec.layout.part(Collections.singletonList("adapter.*"));
        TaskSpec task = task(gated);
        int width = 2 * DIM + 1;
        ContributionLayout layout = new Statistics().layout(task, adapter, width);
        assertEquals(gated.at("contribution_sha256").text(), layout.sha256);
        Parameters given = new Parameters(spec.layout, ByteBuffer.wrap(gated.at("theta").bytes()));
        Parameters closed = Statistics.frozen(spec.layout, given);
        assertArrayEquals(gated.at("frozen").floats(), closed.gather(spec.layout.part(Collections.singletonList("*"))), 0);
        float[] all = gated.at("embedded").floats();
        float[][] features = Statistics.own(Rows.rows(new Tensor(all, all.length / width, width), width), DIM);
        int[] labels = gated.at("labels").words();
        long seed = gated.at("seed").number();
        byte[] sent = Statistics.contribution(layout, task, features, labels, null, seed);
        assertArrayEquals(gated.at("contribution").floats(), Bytes.floats(sent), ROUNDING);
        ParameterPart ungated = part("adapter.*");
        for (int i = 0; i < gated.at("mixtures").size(); i++) {
            Vectors mixture = gated.at("mixtures").at(i);
            TaskSpec mixed = task(mixture);
            assertEquals(Collections.singletonList("mixture_odds"), Methods.told(mixed));
            float[] odds = mixture.at("odds").floats();
            byte[] weighed = Statistics.contribution(layout, mixed, features, labels, odds, seed);
            assertArrayEquals(mixture.at("contribution").floats(), Bytes.floats(weighed), ROUNDING);
            Raised.by(ErrorCode.CONFIG, "an adapter alone", () -> new Statistics().layout(mixed, ungated, DIM));
        }
        assertEquals(Collections.<String>emptyList(), Methods.told(task));
        TaskSpec unmoved = new TaskSpec(Bytes.utf8(gated.at("without_second_moments").text()));
        Raised.by(ErrorCode.CONFIG, "second moments", () -> new Statistics().layout(unmoved, adapter, width));
        new Statistics().layout(unmoved, ungated, DIM);
        Raised.by(ErrorCode.CONFIG, "without a gate", () -> new Statistics().layout(task, adapter, DIM));
    }

    @Test
    public void aMixtureNeedsTenTimesThePhonesThatItsOwnerAsksFor() throws Exception {
        Vectors gated = file().at("gated");
        TaskSpec mixture = task(gated.at("mixtures").at(0));
        assertEquals(160, Methods.fewest(mixture, 16));
        assertEquals(Integer.MAX_VALUE, Methods.fewest(mixture, Integer.MAX_VALUE));
        assertEquals(16, Methods.fewest(task(gated), 16));
        EnumSet<Profile> profiles = EnumSet.of(Profile.MALICIOUS_SERVER);
        Agreement two = new Agreement(2, profiles, Collections.singleton("class_moment"));
        two.check(task(gated));
        String json = gated.at("mixtures").at(0).at("json").text();
        assertTrue(json.contains("\"min_cohort\":" + mixture.minCohort + ","));
        for (int least : new int[] {19, 20}) {
            String many = json.replace("\"min_cohort\":" + mixture.minCohort + ",", "\"min_cohort\":" + least + ",")
                    .replaceFirst("\"min_reports\":[0-9]+", "\"min_reports\":20")
                    .replaceFirst("\"size\":[0-9]+", "\"size\":20");
            TaskSpec asked = new TaskSpec(Bytes.utf8(many));
            if (least == 19) {
                Raised.by(ErrorCode.CONFIG, "less than 20", () -> two.check(asked));
            } else {
                two.check(asked);
                ContributionLayout layout = new Statistics().layout(asked, gatedPart(), 2 * DIM + 1);
                Disclosure told = new Disclosure(asked, layout, 9, 1);
                assertEquals(20, told.fewest);
                assertEquals(2, told.worth);
                assertEquals(4, told.toldApartPhones);
            }
        }
    }

    private static ParameterPart gatedPart() throws Exception {
        ModelSpec spec = ModelSpec.parse(Bytes.utf8(file().at("gated").at("spec_json").text()));
        return spec.layout.part(Collections.singletonList("adapter.*"));
    }

    @Test
    public void aTaskWhoseSumsTellTooMuchIsRefused() throws Exception {
        Vectors refused = file().at("refused");
        for (int i = 0; i < refused.size(); i++) {
            String why = refused.at(i).at("why").text();
            ErrorCode code = why.equals("an option that is not there") ? ErrorCode.VERSION : ErrorCode.CONFIG;
            Vectors given = refused.at(i);
            Raised.by(code, why, () -> task(given));
        }
    }

    @Test
    public void whatIsShownIsAgreedToBeforehand() throws Exception {
        TaskSpec task = task(file().at("phones").at(0));
        EnumSet<Profile> profiles = EnumSet.of(Profile.MALICIOUS_SERVER);
        Raised.by(ErrorCode.CONFIG, "class_moment", () -> new Agreement(4, profiles).check(task));
        new Agreement(4, profiles, Collections.singleton("class_moment")).check(task);
        String other = file().at("phones").at(0).at("json").text().replace("statistics", "fedavg");
        TaskSpec averaged = new TaskSpec(Bytes.utf8(other.replaceFirst("\"options\":\\{[^}]*\\}", "\"options\":{}")));
        Raised.by(ErrorCode.CONFIG, "privacy.reveals", () -> Methods.check(averaged));
    }

    @Test
    public void featuresLongerThanTheTaskSaysAreNotSent() throws Exception {
        Vectors phone = file().at("too_long");
        ParameterPart adapter = part("adapter.*");
        Raised.by(ErrorCode.CONFIG, "longest", () -> contribution(phone, adapter));
    }

    @Test
    public void aModelThatIsNotFrozenIsRefused() throws Exception {
        TaskSpec task = task(file().at("phones").at(0));
        for (String pattern : new String[] {"*", "mix.*", "adapter.bias"}) {
            ParameterPart part = part(pattern);
            Raised.by(ErrorCode.CONFIG, pattern, () -> new Statistics().layout(task, part, DIM));
        }
        ParameterPart adapter = part("adapter.*");
        Raised.by(ErrorCode.CONFIG, "another width", () -> new Statistics().layout(task, adapter, DIM + 1));
    }

    @Test
    public void aMapOfMoreDirectionsThanFeaturesHaveIsRefused() throws Exception {
        String json = file().at("phones").at(0).at("json").text();
        ParameterPart adapter = part("adapter.*");
        for (int rank = DIM - 1; rank <= DIM; rank++) {
            String lda = "\"options\":{\"form\":\"lda\",\"rank\":" + rank + ",";
            TaskSpec task = new TaskSpec(Bytes.utf8(json.replace("\"options\":{", lda)));
            Methods.check(task);
            if (rank < DIM) {
                new Statistics().layout(task, adapter, DIM);
            } else {
                Raised.by(ErrorCode.CONFIG, "rank", () -> new Statistics().layout(task, adapter, DIM));
            }
        }
    }

    @Test
    public void aPhoneIsInOneSumOfATask() throws Exception {
        TaskSpec task = task(file().at("phones").at(0));
        List<Long> past = Collections.singletonList(2L);
        task.checkPromise(Collections.<Long>emptyList(), 3);
        String counted = Raised.by(ErrorCode.BUDGET_EXCEEDED, "a second", () -> task.checkPromise(past, 3));
        assertTrue(counted, counted.contains("counted already, in round 2"));
        Vectors other = Vectors.load("golden/client/tasks.json").at("tasks").at(0);
        TaskSpec averaged = new TaskSpec(Bytes.utf8(other.at("json").text()));
        averaged.checkPromise(past, 3);
    }

    @Test
    public void severalPeopleTakePartAndItIsSaidWhatLeaves() throws Exception {
        TaskSpec task = task(file().at("phones").at(0));
        Methods.checkPeople(task, 3);
        assertTrue(Methods.forPeople(3, new Agreement()).contains("statistics") && Methods.forPeople(1, new Agreement()).contains("statistics"));
        ContributionLayout layout = new Statistics().layout(task, part("adapter.*"), DIM);
        Disclosure told = new Disclosure(task, layout, 7, 3);
        assertFalse(told.trains);
        assertEquals(0, told.numParameters);
        assertEquals(1, told.weight);
        assertEquals(Collections.singleton("class_moment"), told.reveals);
    }
}
