package mien.client.tasks;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.secagg.Coded;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;
import org.junit.Test;

/** What phones send and are told in each method's tasks, how it is cut, and which tasks are refused, as in Python. */
public class MethodsTest {
    private static Vectors file() throws Exception {
        return Vectors.load("golden/client/methods.json");
    }

    private static ContributionLayout layout(TaskSpec task) throws Exception {
        return Given.layout(task, file().at("dim").word());
    }

    @Test
    public void lanesArePythonsAndSoIsWhatIsCutOfThem() throws Exception {
        Vectors tasks = file().at("tasks");
        int cut = 0;
        for (int i = 0; i < tasks.size(); i++) {
            Vectors wanted = tasks.at(i);
            String what = wanted.at("what").text();
            TaskSpec task = Given.task(wanted);
            ContributionLayout layout = layout(task);
            assertEquals(what, wanted.at("contribution_sha256").text(), layout.sha256);
            assertEquals(what, wanted.at("contribution_size").number(), layout.size);
            assertEquals(what, wanted.at("update_size").number(), layout.updateSize());
            for (int k = 0; k < wanted.at("sent").size(); k++) {
                Vectors sent = wanted.at("sent").at(k);
                byte[] terms = sent.at("config").bytes();
                assertEquals(what, wanted.at("l2_clip").real(), Coded.clip(terms), 1e-6);
                assertTrue(what, Coded.isSame(task.numbers(layout, Coded.clip(terms)), terms));
                byte[] vector = Coded.of(layout.addends(sent.at("contribution").bytes()), terms);
                assertArrayEquals(what, sent.at("vector").bytes(), vector);
                cut += vector[8] == 0 ? 1 : 0;
            }
        }
        assertTrue("some were within their clips and some were not", cut > 0 && cut < 3 * tasks.size());
    }

    @Test
    public void whatIsToldIsReadAndHashedAsInPython() throws Exception {
        Vectors tasks = file().at("tasks");
        for (int i = 0; i < tasks.size(); i++) {
            TaskSpec task = Given.task(tasks.at(i));
            for (int k = 0; k < tasks.at(i).at("told").size(); k++) {
                Vectors said = tasks.at(i).at("told").at(k);
                List<String> names = Methods.told(task);
                Told told =
                        Told.parse(
                                Collections.singletonList(said.at("reply").bytes()), names, Told.mostBytes(layout(task)));
                assertArrayEquals(tasks.at(i).at("what").text(), said.at("words").bytes(), told.words(names));
            }
        }
    }

    @Test
    public void peoplesRowsArePythons() throws Exception {
        Vectors tasks = file().at("tasks");
        for (int i = 0; i < tasks.size(); i++) {
            List<String> names = new ArrayList<>();
            Vectors rows = tasks.at(i).at("per_identity");
            for (int k = 0; k < rows.size(); k++) {
                names.add(rows.at(k).text());
            }
            assertEquals(names, Methods.perIdentity(Given.task(tasks.at(i)).method));
        }
    }

    @Test
    public void weightsInCandidatesArePythons() throws Exception {
        Vectors all = file().at("weightings");
        for (int i = 0; i < all.size(); i++) {
            Vectors wanted = all.at(i);
            TaskSpec task = Given.task(wanted);
            float[] rows = wanted.at("history").floats();
            float[][] history = Rows.rows(new Tensor(rows, rows.length / 3, 3), 3);
            double[] weights = wanted.at("weights").reals();
            String device = wanted.at("device").text();
            boolean isAlike = task.options.text("first_weighting", "images").equals("uniform");
            double first = isAlike ? 1 : Math.min(wanted.at("num_images").number(), task.maxWeight);
            byte[] secret = wanted.at("secret").bytes();
            double[] found = Weightings.of(task, device, history, weights.length, first, secret);
            for (int k = 0; k < weights.length; k++) {
                assertEquals(device, weights[k], found[k], 1e-14 * weights[k]);
            }
            float kept = (float) (1 - task.options.real("mixing", 0.01));
            float[][] lies = {
                {0.5f, 1, 0}, {-1, 1, 0}, {weights.length, kept, 0}, {1, -1, 0}, {1, kept, -1}, {1, 0.5f, 1}, {0, kept, 0}, {0, 1, 1}
            };
            for (float[] lie : lies) {
                Raised.by(
                        ErrorCode.CORRUPT_DATA, "a history that cannot be",
                        () -> Weightings.of(task, device, new float[][] {lie}, weights.length, first, secret));
            }
            float[][] tooLong = new float[task.rounds][];
            Arrays.fill(tooLong, new float[] {0, 1, 0});
            Raised.by(
                    ErrorCode.CORRUPT_DATA, "of more rounds than were before",
                    () -> Weightings.of(task, device, tooLong, weights.length, first, secret));
        }
    }

    /** What stays is Python's: a device whose state goes from one program to the other keeps its weights. */
    @Test
    public void aSecretStaysAsItWas() throws Exception {
        byte[] secret = Bytes.unhex("00017f80feff");
        Map<String, Tensor> state = new LinkedHashMap<>();
        Weightings.keep(new byte[0], state);
        assertEquals(Collections.emptyMap(), state);
        Weightings.keep(secret, state);
        assertArrayEquals(new float[] {0, 1, 127, 128, 254, 255}, state.get("weighting_secret").values(), 0);
        assertArrayEquals(secret, Weightings.secret(null, new RoundFaces(new byte[0][], new int[0], state)));
    }

    @Test
    public void whatPythonRefusesIsRefused() throws Exception {
        Vectors refused = file().at("refused");
        for (int i = 0; i < refused.size(); i++) {
            byte[] json = Bytes.utf8(refused.at(i).at("json").text());
            Raised.by(ErrorCode.CONFIG, refused.at(i).at("why").text(), () -> Methods.check(new TaskSpec(json)));
        }
    }
}
