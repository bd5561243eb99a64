package mien.client.secagg;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import org.junit.Test;

/** What noised sums may tell of a phone together is what Python's accountant says. */
public class LedgerTest {
    @Test
    public void epsilonsAreThoseOfPython() throws Exception {
        Vectors cases = Vectors.load("golden/client/sums.json").at("epsilons");
        for (int i = 0; i < cases.size(); i++) {
            Vectors given = cases.at(i);
            List<RoundConfig> sums = new ArrayList<>();
            for (int j = 0; j < given.at("sums").size(); j++) {
                sums.add(RoundConfig.parse(given.at("sums").at(j).bytes()));
            }
            double epsilon = given.at("epsilon").real();
            assertEquals("case " + i, epsilon, Ledger.epsilon(sums, given.at("delta").real()), 1e-12 * epsilon + 1e-15);
        }
        assertTrue(cases.size() > 10);
    }

    @Test
    public void nothingIsToldByNoSums() {
        assertEquals(0, Ledger.epsilon(Collections.<RoundConfig>emptyList(), 1e-6), 0);
    }

    @Test
    public void aDeltaThatPromisesNothingIsRefused() throws Exception {
        Vectors given = Vectors.load("golden/client/sums.json").at("epsilons").at(0);
        RoundConfig sum = RoundConfig.parse(given.at("sums").at(0).bytes());
        Raised.by(ErrorCode.CONFIG, "delta 1", () -> Ledger.epsilon(Collections.singletonList(sum), 1));
    }
}
