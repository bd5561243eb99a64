package mien.client.tasks;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;

import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.model.ModelSpec;
import mien.client.model.ParameterPart;
import mien.client.secagg.Profile;
import mien.client.wire.Bytes;
import org.junit.Test;

/** Rounds against everybody: lanes and what is told are Python's, and tasks whose sums would tell too much are refused. */
public class EverybodyTest {
    private static final int DIM = 3;
    private static final long MOST = 1 << 20;

    private static Vectors file() throws Exception {
        return Vectors.load("golden/client/everybody.json");
    }

    private static TaskSpec task(Vectors given) {
        TaskSpec task = new TaskSpec(Bytes.utf8(given.at("json").text()));
        Methods.check(task);
        return task;
    }

    private static ContributionLayout layout(ParameterPart part) {
        return new ContributionLayout(part, Everybody.lanes(DIM));
    }

    private static ParameterPart part() throws Exception {
        Vectors layouts = Vectors.load("golden/client/layouts.json");
        ModelSpec spec = ModelSpec.parse(Bytes.utf8(layouts.at("spec_json").text()));
        return spec.layout.part(Collections.singletonList("mix.*"));
    }

    private static Told told(byte[] reply, List<String> names) {
        return Told.parse(Collections.singletonList(reply), names, MOST);
    }

    @Test
    public void lanesArePythons() throws Exception {
        ContributionLayout layout = layout(part());
        assertEquals(file().at("contribution_sha256").text(), layout.sha256);
        assertEquals(file().at("contribution_size").number(), layout.size);
        assertEquals(2, layout.numMetrics());
        Disclosure disclosure = new Disclosure(task(file()), layout, 4, 1);
        assertEquals(part().size, disclosure.numParameters);
        assertEquals(layout.size, disclosure.numNumbers);
        assertEquals(Collections.singleton("class_moment"), disclosure.reveals);
        assertArrayEquals(
                Disclosure.toldApart(disclosure.fewest),
                new int[] {disclosure.toldApartPhones, disclosure.toldApartPercent});
    }

    @Test
    public void whatWasMeasuredOfSuchSumsIsPythons() throws Exception {
        Vectors cases = file().at("told_apart");
        for (int i = 0; i < cases.size(); i++) {
            Vectors each = cases.at(i);
            int[] measured = {each.at(1).word(), each.at(2).word()};
            assertArrayEquals(measured, Disclosure.toldApart(each.at(0).word()));
        }
    }

    @Test
    public void whatIsToldIsHashedAsPythonDoes() throws Exception {
        List<String> names = Methods.told(task(file()));
        Vectors cases = file().at("told");
        for (int i = 0; i < cases.size(); i++) {
            Told told = told(cases.at(i).at("reply").bytes(), names);
            assertArrayEquals(cases.at(i).at("words").bytes(), told.words(names));
            assertEquals(i, told.number("moment_number"));
            assertEquals(part().size, told.vector("earlier_part", part().size).length);
        }
        Told nothing = told(new byte[0], Collections.<String>emptyList());
        assertEquals(0, nothing.words(names).length);
        Told last = told(cases.at(1).at("reply").bytes(), names);
        Raised.by(ErrorCode.CORRUPT_DATA, "another length", () -> last.vector("moment_mean", DIM + 1));
    }

    @Test
    public void aServerThatTellsOtherThingsIsLeft() throws Exception {
        List<String> names = Methods.told(task(file()));
        for (Object each : ((Map<?, ?>) file().at("refused_replies").raw()).keySet()) {
            String why = (String) each;
            byte[] reply = file().at("refused_replies").at(why).bytes();
            ErrorCode code = why.equals("an array of another name") ? ErrorCode.VIOLATION : ErrorCode.CORRUPT_DATA;
            // A matrix has the right form for other names.
            Raised.by(code, why, () -> names.forEach(name -> told(reply, names).vector(name, 1)));
        }
        byte[] reply = file().at("told").at(1).at("reply").bytes();
        Raised.by(ErrorCode.VIOLATION, "a task that is told nothing", () -> told(reply, Collections.<String>emptyList()));
        Raised.by(
                ErrorCode.CORRUPT_DATA, "too much", () -> Told.parse(Collections.singletonList(reply), names, 8));
    }

    @Test
    public void aTaskWhoseSumsTellTooMuchIsRefused() throws Exception {
        Vectors refused = file().at("refused");
        for (int i = 0; i < refused.size(); i++) {
            Vectors given = refused.at(i);
            Raised.by(ErrorCode.CONFIG, given.at("why").text(), () -> task(given));
        }
    }

    @Test
    public void whatIsShownIsAgreedToBeforehand() throws Exception {
        TaskSpec task = task(file());
        EnumSet<Profile> profiles = EnumSet.of(Profile.MALICIOUS_SERVER);
        Raised.by(ErrorCode.CONFIG, "class_moment", () -> new Agreement(4, profiles).check(task));
        new Agreement(4, profiles, Collections.singleton("class_moment")).check(task);
        Raised.by(ErrorCode.CONFIG, "two people", () -> Methods.checkPeople(task, 2));
    }
}
