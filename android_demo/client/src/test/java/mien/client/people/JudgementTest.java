package mien.client.people;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import org.junit.Test;

/** Personal models are fitted, judged and kept as Python's are. */
public class JudgementTest {
    /** Python adds in another order. */
    private static final double ROUNDING = 2e-6;

    private static Vectors file() throws Exception {
        return Vectors.load("golden/client/personal.json");
    }

    private static float[][] rows(Vectors hex, int dim) {
        float[] all = hex.floats();
        return Rows.rows(new Tensor(all, all.length / dim, dim), dim);
    }

    private static Judgement judged(Vectors phone, int dim) {
        return Judgement.of(
                rows(phone.at("own"), dim), phone.at("labels").words(), rows(phone.at("public"), dim),
                phone.at("public_labels").words(), phone.at("threshold").real(), 0);
    }

    @Test
    public void peopleGetThePersonalModelsThatPythonGivesThem() throws Exception {
        int dim = file().at("dim").word();
        int judged = 0;
        for (int i = 0; i < file().at("phones").size(); i++) {
            Vectors phone = file().at("phones").at(i);
            String what = phone.at("what").text();
            if (!phone.has("gain")) {
                Raised.by(ErrorCode.CONFIG, what, () -> judged(phone, dim));
                continue;
            }
            Judgement found = judged(phone, dim);
            assertEquals(what, phone.at("is_better").flag(), found.isBetter());
            assertEquals(what, phone.at("gain").real(), found.gain, 1e3 * ROUNDING);
            assertEquals(what, phone.at("gain_error").real(), found.gainError, 1e3 * ROUNDING);
            assertArrayEquals(what, phone.at("bias").floats(), found.branch.bias, (float) ROUNDING);
            assertArrayEquals(what, phone.at("weight").floats(), Rows.joined(found.branch.weight), (float) ROUNDING);
            for (int k = 0; k < found.thresholds.length; k++) {
                Vectors wanted = phone.at("thresholds").at(k);
                PersonalThreshold at = found.thresholds[k];
                assertEquals(what, wanted.at("value").real(), at.value, 10 * ROUNDING);
                assertEquals(what, wanted.at("fmr_upper").real(), at.fmrUpper(), 1e-12);
                int[] counts = {at.numFalse, at.numPublic, at.numMissed, at.numMissedReleased, at.numMated};
                String[] names = {"num_false", "num_public", "num_missed", "num_missed_released", "num_mated"};
                for (int n = 0; n < names.length; n++) {
                    assertEquals(what + " " + names[n], wanted.at(names[n]).word(), counts[n]);
                }
            }
            judged++;
        }
        assertTrue(judged >= 5);
    }

    @Test
    public void aPersonalModelIsReadAsItWasWritten() throws Exception {
        int dim = file().at("dim").word();
        Judgement found = judged(file().at("phones").at(0), dim);
        PersonalModel written =
                new PersonalModel("a", found.branch, Collections.singletonMap(7, found.thresholds[0]), 0.5);
        PersonalModel read = PersonalModel.ofBytes(written.toBytes());
        assertEquals("a", read.modelId);
        assertEquals(0.5, read.releasedThreshold, 0);
        assertArrayEquals(found.branch.bias, read.branch.bias, 0);
        assertArrayEquals(Rows.joined(found.branch.weight), Rows.joined(read.branch.weight), 0);
        assertEquals(found.thresholds[0].value, read.thresholds.get(7).value, 0);
        assertEquals(found.thresholds[0].numMated, read.thresholds.get(7).numMated);
        byte[] cut = Arrays.copyOf(written.toBytes(), 40);
        Raised.by(ErrorCode.CORRUPT_DATA, "half a record", () -> PersonalModel.ofBytes(cut));
    }
}
