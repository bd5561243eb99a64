package mien.client.people;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** People come, agree, change their minds and go; templates are of one model, all of them or none. */
public class GalleryTest {
    private static final String OLD = "old";
    private static final String NEW = "new";
    private static final List<String> NO_ROWS = Collections.emptyList();

    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private Folder root;
    private Folder files;
    private Gallery gallery;

    @Before
    public void open() {
        root = new Folder(temporary.getRoot().toPath());
        files = root.folder("gallery");
        gallery = opened();
    }

    private Vault vault() {
        return new Vault(files, new FileKeyProvider(root.folder("keys")), "gallery");
    }

    private Gallery opened() {
        return new Gallery(vault(), new Numbers(root));
    }

    private static byte[][] crops(int seed, int number) {
        byte[][] crops = new byte[number][];
        for (int i = 0; i < number; i++) {
            crops[i] = new byte[] {(byte) seed, (byte) i};
        }
        return crops;
    }

    /** A model that says which person it saw, and that it is itself. */
    private static float[] template(byte[][] crops, int model) {
        return new float[] {model, crops[0][0]};
    }

    private int enrol(String name, int seed, boolean agrees) {
        return gallery.enrol(name, crops(seed, 3), template(crops(seed, 3), 1), OLD, 1000 + seed, agrees);
    }

    @Test
    public void peopleAreWhatTheySaidAndAreStillThereAfterARestart() {
        assertNull(gallery.modelId());
        int ada = enrol("Ada", 7, true);
        int bo = enrol("Bo", 8, false);
        Raised.by(ErrorCode.ALREADY_EXISTS, "a name twice", () -> enrol("Ada", 9, false));
        Raised.by(ErrorCode.CONFIG, "no pictures", () -> gallery.enrol("Cy", new byte[0][], null, OLD, 0, true));
        Raised.by(
                ErrorCode.MODEL_MISMATCH, "another model's", () -> gallery.enrol("Cy", crops(9, 1), null, NEW, 0, true));
        gallery.add(ada, crops(70, 2), template(crops(70, 2), 1), OLD);
        Gallery again = opened();
        Gallery.Person person = again.person(ada);
        assertEquals("Ada", person.name);
        assertEquals(1007, person.agreedMs);
        assertEquals(5, person.numImages());
        assertArrayEquals(new byte[] {70, 1}, person.crops()[4]);
        assertTrue(again.stillTrains(ada));
        assertFalse(again.stillTrains(bo));
        assertFalse(again.stillTrains(99));
        assertEquals(2, again.templates(OLD).get(ada).length);
        Raised.by(ErrorCode.MODEL_MISMATCH, "templates of another model", () -> again.templates(NEW));
        Raised.by(ErrorCode.NOT_ENROLLED, "nobody", () -> again.person(99));
        assertFalse("no picture in a text", person.toString().contains("70"));
    }

    private void keepPersonal(int person) {
        PersonalThreshold at = new PersonalThreshold(0.5, 0, 20, 0, 0, 3);
        Branch branch = new Branch(new float[][] {{1, 0}, {0, 1}}, new float[2]);
        gallery.keepPersonal(
                new PersonalModel(OLD, branch, Collections.singletonMap(person, at), 0.4), gallery.version());
        assertEquals(0.5, opened().personal(OLD).thresholds.get(person).value, 0);
        assertNull(gallery.personal(NEW));
    }

    @Test
    public void aPersonalModelGoesWithAnyChangeOfPeoplePicturesConsentOrModel() {
        int ada = enrol("Ada", 7, true);
        List<Runnable> changes = new ArrayList<>();
        changes.add(() -> enrol("Bo", 8, false));
        changes.add(() -> gallery.add(ada, crops(9, 1), new float[] {1, 9}, OLD));
        changes.add(() -> gallery.setConsent(ada, false, 0));
        changes.add(() -> gallery.setConsent(ada, true, 2000));
        changes.add(() -> gallery.remove(gallery.people().get(1).id));
        changes.add(() -> gallery.reembed(OLD, crops -> template(crops, 1)));
        changes.add(() -> gallery.forgetPersonal());
        for (Runnable change : changes) {
            keepPersonal(ada);
            long before = gallery.version();
            change.run();
            assertFalse("change " + changes.indexOf(change), opened().hasPersonal());
            if (gallery.version() != before) {
                PersonalModel late = new PersonalModel(OLD, null, Collections.emptyMap(), 0.4);
                Raised.by(ErrorCode.UNREACHABLE, "made before the change", () -> gallery.keepPersonal(late, before));
            }
        }
        assertFalse(gallery.forgetPersonal());
        keepPersonal(ada);
        files.write("personal", new byte[40]);
        assertNull("damaged", gallery.personal(OLD));
        keepPersonal(ada);
    }

    @Test
    public void whatTrainingKeptGoesWithConsentAndEverythingWithThePerson() {
        int ada = enrol("Ada", 7, true);
        int bo = enrol("Bo", 8, true);
        Map<String, Tensor> state = new HashMap<>();
        state.put("class_embedding", Tensor.vector(new float[] {1, 2}));
        for (int person : new int[] {ada, bo}) {
            gallery.putState("task", TrainingState.of(state, Collections.singletonList(person), NO_ROWS));
        }
        assertArrayEquals(new float[] {1, 2}, kept(ada).get("class_embedding").values(), 0);
        gallery.setConsent(ada, false, 2000);
        assertFalse(gallery.stillTrains(ada));
        assertTrue(kept(ada).isEmpty());
        assertEquals("Ada is still verified", 1, gallery.templates(OLD).get(ada).length);
        gallery.setConsent(ada, true, 3000);
        assertEquals(3000, gallery.person(ada).agreedMs);
        gallery.remove(bo);
        assertTrue(kept(bo).isEmpty());
        assertFalse(gallery.templates(OLD).containsKey(bo));
        List<String> left = new ArrayList<>(files.names());
        assertEquals(2, left.size());
        assertTrue(left.contains("person-000001") && left.contains("templates"));
    }

    private Map<String, Tensor> kept(int person) {
        List<Integer> alone = Collections.singletonList(person);
        return gallery.state(alone, "task").forRound(alone, NO_ROWS);
    }

    @Test
    public void rowsStayWithTheirPeopleAndWhatIsOfSeveralGoesWithAnybody() {
        int ada = enrol("Ada", 7, true);
        int bo = enrol("Bo", 8, true);
        int cy = enrol("Cy", 9, true);
        List<String> rows = Collections.singletonList("rows");
        Map<String, Tensor> state = new HashMap<>();
        state.put("rows", new Tensor(new float[] {3, 4, 1, 2}, 2, 2));
        state.put("public", Tensor.vector(new float[] {9}));
        gallery.putState("task", TrainingState.of(state, Arrays.asList(cy, ada), rows));

        TrainingState kept = gallery.state(Arrays.asList(ada, bo, cy), "task");
        List<Integer> order = kept.order(Arrays.asList(ada, bo, cy));
        assertEquals("who has rows keeps their place", Arrays.asList(cy, ada, bo), order);
        assertArrayEquals(new float[] {3, 4, 1, 2}, kept.forRound(order, rows).get("rows").values(), 0);
        assertArrayEquals(new float[] {9}, kept.forRound(order, rows).get("public").values(), 0);

        List<Integer> alone = kept.order(Arrays.asList(ada, bo));
        assertEquals(Arrays.asList(ada, bo), alone);
        assertArrayEquals(new float[] {1, 2}, kept.forRound(alone, rows).get("rows").values(), 0);
        assertFalse("of all together, and one is missing", kept.forRound(alone, rows).containsKey("public"));

        gallery.setConsent(cy, false, 1);
        kept = gallery.state(Arrays.asList(ada, bo), "task");
        assertTrue(kept.together.isEmpty() && kept.members.isEmpty());
        assertEquals(Collections.singleton(ada), kept.own.keySet());
    }

    @Test
    public void anotherModelComesIntoUseAtOnceOrNotAtAll() {
        enrol("Ada", 7, true);
        enrol("Bo", 8, true);
        gallery.add(1, crops(70, 2), template(crops(70, 2), 1), OLD);
        Map<String, byte[]> before = contents();
        for (int cut = 1; cut <= 3; cut++) {
            int[] made = {0};
            int at = cut;
            try {
                gallery.reembed(
                        NEW,
                        crops -> {
                            if (++made[0] == at) {
                                throw new IllegalStateException("the power is cut");
                            }
                            return template(crops, 2);
                        });
            } catch (IllegalStateException expected) {
                assertEquals("the power is cut", expected.getMessage());
            }
            assertUnchanged(before);
        }
        gallery.reembed(NEW, crops -> template(crops, 2));
        Map<String, byte[]> after = contents();
        for (String name : before.keySet()) {
            // One file changes, and a file is replaced by a rename: there is no state in between.
            assertEquals(name.equals("templates"), !Bytes.hex(before.get(name)).equals(Bytes.hex(after.get(name))));
        }
        assertEquals(NEW, opened().modelId());
        for (float[][] rows : gallery.templates(NEW).values()) {
            for (float[] row : rows) {
                assertEquals(2, row[0], 0);
            }
        }
        assertArrayEquals(new float[] {2, 70}, gallery.templates(NEW).get(1)[1], 0);
    }

    @Test
    public void whoIsEnrolledWhileAModelComesIsInItToo() {
        enrol("Ada", 7, false);
        int[] made = {0};
        gallery.reembed(
                NEW,
                crops -> {
                    if (++made[0] == 1) {
                        enrol("Bo", 8, false);
                    }
                    return template(crops, 2);
                });
        assertArrayEquals(new float[] {2, 8}, gallery.templates(NEW).get(2)[0], 0);
        Raised.by(
                ErrorCode.UNREACHABLE,
                "somebody comes every time",
                () ->
                        gallery.reembed(
                                "newest",
                                crops -> {
                                    gallery.setConsent(1, !gallery.stillTrains(1), 4000);
                                    return template(crops, 3);
                                }));
        assertEquals(NEW, gallery.modelId());
    }

    @Test
    public void anEnrolmentThatWasCutShortIsNobodys() {
        enrol("Ada", 7, true);
        enrol("Bo", 8, true);
        files.delete("person-000002"); // as if the power was cut between the templates and the person
        assertEquals(Collections.singleton(1), gallery.templates(OLD).keySet());
        int again = enrol("Bo", 9, true);
        assertArrayEquals(new float[] {1, 9}, gallery.templates(OLD).get(again)[0], 0);
        assertEquals(2, gallery.templates(OLD).size());
    }

    @Test
    public void whoeverChangesThePhonesLanguageLosesNobody() {
        int ada = enrol("Ada", 7, true);
        Locale before = Locale.getDefault();
        Locale.setDefault(Locale.forLanguageTag("ar-EG-u-nu-arab")); // with digits of its own
        try {
            assertEquals("Ada", gallery.person(ada).name);
            enrol("Bo", 8, false);
            assertTrue(files.has("person-000002"));
            gallery.setConsent(ada, false, 2000);
        } finally {
            Locale.setDefault(before);
        }
        assertFalse(gallery.stillTrains(ada));
        assertEquals(2, gallery.people().size());
    }

    @Test
    public void aNumberIsNeverGivenAgain() {
        assertEquals(1, enrol("Ada", 7, true));
        assertEquals(2, enrol("Bo", 8, true));
        gallery.remove(2);
        assertEquals(3, enrol("Bo", 8, true));
        gallery.remove(1);
        gallery.remove(3);
        gallery = opened();
        assertEquals("nobody is left", 4, enrol("Cy", 9, true));
        gallery.wipe();
        gallery = opened();
        assertEquals("and after a wipe", 5, enrol("Cy", 9, true));
        root.write(Numbers.FILE, new byte[] {'?'});
        assertEquals("without the note, above whoever is here", 6, enrol("Di", 10, true));
        root.delete(Numbers.FILE);
        assertEquals("as in homes of an earlier version", 7, enrol("Ed", 11, true));
        Raised.by(ErrorCode.ALREADY_EXISTS, "a name twice", () -> enrol("Ed", 12, false));
        assertEquals("no number is used up for it", 8, enrol("Flo", 12, true));
    }

    @Test
    public void whoseRecordIsDamagedIsListedAndTakesNoPart() {
        int ada = enrol("Ada", 7, true);
        int bo = enrol("Bo", 8, true);
        byte[] whole = files.read("person-000001");
        for (byte[] damaged : new byte[][] {new byte[0], {1, 0, 0}, Arrays.copyOf(whole, whole.length - 1)}) {
            files.write("person-000001", damaged);
            assertTrue(gallery.people().get(0).isDamaged);
            assertEquals(ada, gallery.people().get(0).id);
            assertFalse(gallery.person(ada).trains || gallery.stillTrains(ada));
            assertFalse(gallery.person(bo).isDamaged);
            assertTrue(gallery.stillTrains(bo));
        }
        vault().put("person-000001", new byte[] {1, 0, 0});
        assertTrue("sealed, but of another form", gallery.person(ada).isDamaged);
        String told = Raised.by(ErrorCode.CORRUPT_DATA, "an agreement", () -> gallery.setConsent(ada, true, 2000));
        assertTrue(told, told.contains("remove them, and enrol them again"));
        byte[][] more = crops(70, 1);
        Raised.by(ErrorCode.CORRUPT_DATA, "pictures", () -> gallery.add(ada, more, template(more, 1), OLD));
        gallery.reembed(NEW, crops -> template(crops, 2));
        assertEquals("nothing to make a template of", Collections.singleton(bo), gallery.templates(NEW).keySet());
        gallery.remove(ada);
        assertEquals(1, gallery.people().size());
        assertEquals(Collections.singletonList("person-000002"), namesOf("person-"));
    }

    @Test
    public void whoWithdrewWhileTheirRecordWasDamagedDoesNotTrainShouldItOpenAgain() {
        int ada = enrol("Ada", 7, true);
        byte[] whole = files.read("person-000001");
        files.write("person-000001", new byte[] {1});
        gallery.setConsent(ada, false, 2000);
        files.write("person-000001", whole);
        assertEquals("Ada", gallery.person(ada).name);
        assertFalse(gallery.person(ada).trains);
        gallery.setConsent(ada, true, 3000);
        assertTrue(opened().person(ada).trains);
    }

    @Test
    public void damagedTemplatesAreAsNoneAndGoWithThePerson() {
        enrol("Ada", 7, true);
        enrol("Bo", 8, true);
        files.write("templates", new byte[] {'?'});
        assertNull(gallery.modelId());
        Raised.by(ErrorCode.MODEL_MISMATCH, "nothing to compare with", () -> gallery.templates(OLD));
        gallery.remove(2);
        assertFalse("they may hold Bo's", files.has("templates"));
        gallery.reembed(NEW, crops -> template(crops, 2));
        assertArrayEquals(new float[] {2, 7}, gallery.templates(NEW).get(1)[0], 0);
    }

    private List<String> namesOf(String prefix) {
        return vault().names(prefix);
    }

    private Map<String, byte[]> contents() {
        Map<String, byte[]> contents = new HashMap<>();
        for (String name : files.names()) {
            contents.put(name, files.read(name));
        }
        return contents;
    }

    private void assertUnchanged(Map<String, byte[]> before) {
        assertEquals(before.keySet(), contents().keySet());
        for (Map.Entry<String, byte[]> each : before.entrySet()) {
            assertArrayEquals(each.getKey(), each.getValue(), files.read(each.getKey()));
        }
    }
}
