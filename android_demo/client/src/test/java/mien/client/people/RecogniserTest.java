package mien.client.people;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import mien.client.ErrorCode;
import mien.client.KnownFaceException;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.model.Model;
import mien.client.model.ModelSpec;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.wire.Bytes;
import mien.client.wire.Texts;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Searches decide, and enrolments are compared with who is there, as in Python. */
public class RecogniserTest {
    private static final byte[][] CROPS = {{1}, {2}, {3}};

    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private Vectors file;
    private String modelId;

    @Before
    public void load() throws IOException {
        file = Vectors.load("golden/client/search.json");
        modelId = file.at("model_id").text();
    }

    private static ModelSpec spec(Vectors of) {
        return ModelSpec.parse(Bytes.utf8(of.at("spec_json").text()));
    }

    @Test
    public void thresholdsFollowFromHowManyAreEnrolled() {
        Vectors models = file.at("models");
        for (int i = 0; i < models.size(); i++) {
            Vectors model = models.at(i);
            ModelSpec spec = spec(model);
            String what = model.at("what").text();
            for (int j = 0; j < model.at("at").size(); j++) {
                Vectors expected = model.at("at").at(j);
                Operating at = Operating.among(spec.thresholds, modelId, expected.at("enrolled").word());
                assertEquals(what, expected.at("value").real(), at.value, 0);
                assertEquals(what, expected.at("fpir").real(), at.fpir, 1e-12);
                assertEquals(what, expected.at("too_many").flag(), at.isTooMany());
            }
            if (model.at("at").size() == 0) {
                Raised.by(ErrorCode.CONFIG, what, () -> Operating.among(spec.thresholds, modelId, 1));
            }
        }
    }

    @Test
    public void whatEntersIsComparedWithWhoIsThere() {
        Vectors stored = file.at("stored");
        Gallery gallery = gallery(stored.at("people"));
        Recogniser recogniser = new Recogniser(new Model(modelId, spec(stored), null, null), null, gallery);
        for (int i = 0; i < stored.at("cases").size(); i++) {
            Vectors each = stored.at("cases").at(i);
            int own = each.at("own").raw() == null ? Recogniser.NOBODY : 1;
            String raised = "";
            String message = "";
            try {
                recogniser.checkStored(each.at("template").floats(), own);
            } catch (MienException error) {
                boolean isOfAnother = error.code() == ErrorCode.ALREADY_EXISTS;
                assertEquals(isOfAnother, error instanceof KnownFaceException);
                raised = error.code().code();
                message = error.getMessage();
            }
            assertEquals("case " + i, each.at("raised").text(), raised);
            for (int j = 0; j < each.at("named").size(); j++) {
                assertTrue(message, message.contains(Texts.isolated(each.at("named").at(j).text())));
            }
        }
    }

    @Test
    public void whoIsDamagedOrNotHereIsToldSo() {
        Vectors stored = file.at("stored");
        Gallery gallery = gallery(stored.at("people"));
        Recogniser recogniser = new Recogniser(new Model(modelId, spec(stored), null, null), null, gallery);
        float[] template = {1, 0, 0};
        Raised.by(ErrorCode.NOT_ENROLLED, "nobody of that number", () -> recogniser.checkStored(template, 99));
        new Folder(temporary.getRoot().toPath()).folder("gallery").write("person-000001", new byte[] {'?'});
        Raised.by(ErrorCode.CORRUPT_DATA, "remove them", () -> recogniser.checkStored(template, 1));
    }

    @Test
    public void aModelWithoutAThresholdComparesNothing() {
        Vectors stored = file.at("stored");
        Vectors models = file.at("models");
        ModelSpec none = spec(models.at(models.size() - 1));
        Recogniser recogniser = new Recogniser(
                new Model(modelId, none, null, null), null, gallery(stored.at("people")));
        recogniser.checkStored(new float[] {1, 0, 0}, Recogniser.NOBODY);
    }

    private Gallery gallery(Vectors people) {
        Folder root = new Folder(temporary.getRoot().toPath());
        Vault vault = new Vault(root.folder("gallery"), new FileKeyProvider(root.folder("keys")), "gallery");
        Gallery gallery = new Gallery(vault, new Numbers(root));
        for (int i = 0; i < people.size(); i++) {
            double[] values = people.at(i).at(1).reals();
            float[] template = {(float) values[0], (float) values[1], (float) values[2]};
            gallery.enrol(people.at(i).at(0).text(), CROPS, template, modelId, 1000, false);
        }
        return gallery;
    }
}
