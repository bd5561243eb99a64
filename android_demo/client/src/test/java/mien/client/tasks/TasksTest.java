package mien.client.tasks;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.model.ModelSpec;
import mien.client.model.ParameterPart;
import mien.client.secagg.NumberFormat;
import mien.client.secagg.Profile;
import mien.client.wire.Bytes;
import mien.client.wire.RoundRef;
import org.junit.Test;

/** What a device makes of a task, and which tasks it stays out of. */
public class TasksTest {
    private static final Agreement AGREED = new Agreement(4, EnumSet.of(Profile.MALICIOUS_SERVER));

    private static void check(byte[] json) {
        TaskSpec task = new TaskSpec(json);
        AGREED.check(task);
        Methods.check(task);
    }

    @Test
    public void hashesSumsNumbersAndSeeds() throws Exception {
        Vectors tasks = Vectors.load("golden/client/tasks.json").at("tasks");
        for (int i = 0; i < tasks.size(); i++) {
            Vectors given = tasks.at(i);
            byte[] json = Bytes.utf8(given.at("json").text());
            check(json);
            TaskSpec task = new TaskSpec(json);
            assertArrayEquals(given.at("sha256").bytes(), task.sha256);
            assertEquals(given.at("smallest_sum").number(), task.smallestSum);
            assertEquals(given.at("largest_sum").number(), task.largestSum);
            assertEquals(given.at("sources").number(), task.sources);
            NumberFormat numbers = task.numbers();
            Vectors expected = given.at("numbers");
            assertEquals(expected.at("frac_bits").number(), numbers.fracBits);
            assertEquals(expected.at("metric_frac_bits").number(), numbers.metricFracBits);
            assertEquals(expected.at("l2_clip").real(), numbers.l2Clip, 0);
            assertEquals(expected.at("coordinate_clip").real(), numbers.coordinateClip, 0);
            assertEquals(expected.at("ring_bits").number(), numbers.ringBits);
            assertEquals(expected.at("max_weight").number(), numbers.maxWeight);
            Vectors round = given.at("round");
            RoundRef ref =
                    new RoundRef(round.at("task_id").text(), round.at("round").word(), round.at("attempt").word());
            assertEquals(given.at("local_seed").number(), task.localSeed(given.at("device").text(), ref));
        }
    }

    @Test
    public void trainingThatNeedsMoreMemoryThanThereIsIsRefused() throws Exception {
        Vectors layouts = Vectors.load("golden/client/layouts.json");
        ParameterPart part =
                ModelSpec.parse(Bytes.utf8(layouts.at("spec_json").text())).layout.part(Collections.singletonList("*"));
        byte[] json = Bytes.utf8(Vectors.load("golden/client/tasks.json").at("tasks").at(0).at("json").text());
        TaskSpec averaged = new TaskSpec(json);
        TaskSpec held = new TaskSpec(Bytes.utf8(Bytes.text(json).replace("\"fedavg\"", "\"fedprox\"")));
        assertEquals("fedavg", averaged.method);
        assertEquals("fedprox", held.method);
        Methods.checkFits(averaged, part, 28L * part.size);
        Methods.checkFits(held, part, 36L * part.size);
        Raised.by(ErrorCode.CONFIG, "fedavg", () -> Methods.checkFits(averaged, part, 28L * part.size - 1));
        Raised.by(ErrorCode.CONFIG, "fedprox", () -> Methods.checkFits(held, part, 36L * part.size - 1));
        TaskSpec summed =
                new TaskSpec(Bytes.utf8(Vectors.load("golden/client/statistics.json").at("phones").at(0).at("json").text()));
        Methods.checkFits(summed, part, 1);
    }

    @Test
    public void tasksThatThePhoneStaysOutOf() throws Exception {
        Vectors refused = Vectors.load("golden/client/tasks.json").at("refused");
        for (int i = 0; i < refused.size(); i++) {
            byte[] json = Bytes.utf8(refused.at(i).at("json").text());
            Raised.by(ErrorCode.CONFIG, refused.at(i).at("why").text(), () -> check(json));
        }
    }

    @Test
    public void aFieldThatIsNotKnownIsNotPassedOver() throws Exception {
        byte[] json = Bytes.utf8(Vectors.load("golden/client/tasks.json").at("tasks").at(0).at("json").text());
        String changed = Bytes.text(json).replace("\"privacy\":{", "\"privacy\":{\"also_reveals\":true,");
        Raised.by(ErrorCode.VERSION, "also_reveals", () -> check(Bytes.utf8(changed)));
    }

    @Test
    public void numbersThatCannotBeAreRefusedBeforeAnybodyCounts() throws Exception {
        Vectors tasks = Vectors.load("golden/client/tasks.json").at("tasks");
        String[][] changes = {
            {"\"groups\":[0-9]+", "\"groups\":2147483647"},
            {"\"groups\":[0-9]+(.*)", "\"groups\":2$1", "\"over_selection\":[0-9.]+", "\"over_selection\":0.0"},
            {"\"over_selection\":[0-9.]+", "\"over_selection\":1e308"},
            {"\"min_reports\":[0-9]+", "\"min_reports\":2147483647"},
            {"(\"min_reports\":([0-9]+))(,\"must_include\":[^}]*})?", "$1,\"must_include\":{\"labelled\":1$2}"},
        };
        for (int i = 0; i < tasks.size(); i++) {
            for (String[] change : changes) {
                String json = tasks.at(i).at("json").text();
                for (int at = 0; at < change.length; at += 2) {
                    json = json.replaceFirst(change[at], change[at + 1]);
                }
                byte[] changed = Bytes.utf8(json);
                Raised.by(ErrorCode.CONFIG, change[1], () -> check(changed));
            }
        }
    }

    @Test
    public void trainingWithoutEndIsRefusedAsInPython() throws Exception {
        String json = Vectors.load("golden/client/tasks.json").at("tasks").at(0).at("json").text();
        String[][] fields = {
            {"\"batch_size\":2", "\"batch_size\":1000000", "\"batch_size\":1000001"},
            {"\"epochs\":1", "\"epochs\":1000", "\"epochs\":1001"},
            {"\"lr\":0.05", "\"lr\":1000.0", "\"lr\":1000.5", "\"lr\":0.0", "\"lr\":-1.0"},
            {"\"lr_drop_epoch\":0", "\"lr_drop_epoch\":1000", "\"lr_drop_epoch\":1001"},
            {"\"momentum\":0.0,\"steps\"", "\"momentum\":0.9,\"steps\"", "\"momentum\":1.0,\"steps\""},
            {"\"steps\":0", "\"steps\":1000000", "\"steps\":1000001"},
            {"\"weight_decay\":0.0", "\"weight_decay\":1000.0", "\"weight_decay\":1000.5", "\"weight_decay\":-0.5"},
            {"\"weight_decay\":0.0", "\"private_lr\":0.0,\"weight_decay\":0.0", "\"private_lr\":-1.0,\"weight_decay\":0.0"},
            {
                "\"steps\":0", "\"private_momentum\":0.9,\"private_weight_decay\":9.0,\"steps\":0",
                "\"private_momentum\":1.0,\"steps\":0", "\"private_weight_decay\":-1.0,\"steps\":0"
            },
        };
        for (String[] field : fields) {
            assertTrue(field[0], json.contains(field[0]));
            check(Bytes.utf8(json.replace(field[0], field[1])));
            for (int i = 2; i < field.length; i++) {
                byte[] changed = Bytes.utf8(json.replace(field[0], field[i]));
                Raised.by(ErrorCode.CONFIG, field[i], () -> check(changed));
            }
        }
    }

    /** Whoever runs them knows what they sent: the others hide among those that are left. */
    @Test
    public void sourcesDoNotCountTowardsTheOwnersFloor() throws Exception {
        Vectors tasks = Vectors.load("golden/client/tasks.json").at("tasks");
        int withSources = 0;
        for (int i = 0; i < tasks.size(); i++) {
            String json = tasks.at(i).at("json").text();
            TaskSpec task = new TaskSpec(Bytes.utf8(json));
            if (task.sources > 0) {
                withSources++;
                String labelled = "\"labelled\":[0-9]+";
                int most = task.smallestSum - AGREED.minCohort;
                check(Bytes.utf8(json.replaceFirst(labelled, "\"labelled\":" + most)));
                byte[] few = Bytes.utf8(json.replaceFirst(labelled, "\"labelled\":" + (most + 1)));
                Raised.by(ErrorCode.CONFIG, "sums over 3 devices besides its sources", () -> check(few));
            }
        }
        assertTrue(withSources > 0);
    }

    @Test
    public void aNameThatNobodyReadsIsRefused() throws Exception {
        String json = Vectors.load("golden/client/tasks.json").at("tasks").at(0).at("json").text();
        char[] name = new char[70_000];
        Arrays.fill(name, 'x');
        String changed = json.replaceFirst("\"name\":\"[^\"]*\"", "\"name\":\"" + new String(name) + "\"");
        Raised.by(ErrorCode.CORRUPT_DATA, "a long name", () -> check(Bytes.utf8(changed)));
    }

    @Test
    public void limitsOfAnOwnerThatAreNoneAreRefused() {
        for (int days : new int[] {-1, 3651}) {
            Raised.by(ErrorCode.CONFIG, days + " days", () -> AGREED.withPeers(days, true));
        }
        for (double epsilon : new double[] {0, -1, Double.NaN}) {
            Raised.by(ErrorCode.CONFIG, "epsilon " + epsilon, () -> AGREED.withMaxEpsilon(epsilon));
        }
        Agreement both = AGREED.withPeers(3650, true).withMaxEpsilon(8);
        assertEquals(3650, both.minPeerAgeDays);
        assertTrue(both.countsAttestedPeers);
        assertEquals(8, both.maxEpsilon, 0);
        assertEquals(AGREED.minCohort, both.minCohort);
    }

    @Test
    public void noiseBeyondAllNumbersIsRefused() throws Exception {
        Vectors tasks = Vectors.load("golden/client/tasks.json").at("tasks");
        int skellam = 0;
        for (int i = 0; i < tasks.size(); i++) {
            String json = tasks.at(i).at("json").text();
            if (json.contains("\"skellam\"")) {
                skellam++;
                for (String most : new String[] {"1e30", "1e38", "1e308"}) {
                    String changed = json.replaceFirst("\"noise_multiplier\":[0-9.e-]+", "\"noise_multiplier\":" + most);
                    Raised.by(ErrorCode.CONFIG, most, () -> new TaskSpec(Bytes.utf8(changed)).numbers());
                }
            }
        }
        assertTrue(skellam > 0);
    }

    @Test
    public void whatWasAgreedToStaysAsItWas() {
        Set<Profile> profiles = EnumSet.of(Profile.MALICIOUS_SERVER);
        Agreement agreed = new Agreement(4, profiles);
        profiles.add(Profile.HONEST_BUT_CURIOUS);
        assertEquals(EnumSet.of(Profile.MALICIOUS_SERVER), agreed.profiles);
        try {
            agreed.reveals.add(Agreement.CLASS_MOMENT);
        } catch (UnsupportedOperationException error) {
            return;
        }
        throw new AssertionError("an owner's agreement was widened behind their back");
    }
}
