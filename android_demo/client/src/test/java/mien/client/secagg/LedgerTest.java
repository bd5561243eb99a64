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
            double epsilon = given.at("epsilon").real();
            assertEquals("case " + i, epsilon, Ledger.epsilon(sums(given), given.at("delta").real()), 1e-12 * epsilon + 1e-15);
        }
        assertTrue(cases.size() > 10);
    }

    @Test
    public void anOwnersLimitIsOverAllSumsAndOneWithoutNoiseIsBeyondAny() throws Exception {
        Vectors cases = Vectors.load("golden/client/sums.json").at("epsilons");
        int checked = 0;
        for (int i = 0; i < cases.size(); i++) {
            if (cases.at(i).at("delta").real() != 1e-6) {
                continue;
            }
            List<RoundConfig> earlier = sums(cases.at(i));
            RoundConfig coming = earlier.remove(earlier.size() - 1);
            double epsilon = cases.at(i).at("epsilon").real();
            if (Double.isFinite(epsilon) && epsilon > 0) {
                checked++;
                Ledger.checkOwner(coming, earlier, epsilon * 1.0001);
                String told =
                        Raised.by(
                                ErrorCode.BUDGET_EXCEEDED,
                                "case " + i,
                                () -> Ledger.checkOwner(coming, earlier, epsilon * 0.9999));
                assertTrue(told, told.contains("the owner's limit is"));
            }
        }
        assertTrue(checked > 5);
        RoundConfig plain =
                RoundConfig.parse(Vectors.load("golden/secagg/primitives.json").at("config").at(0).at("bytes").bytes());
        RoundConfig noised = sums(cases.at(0)).get(0);
        Raised.by(ErrorCode.BUDGET_EXCEEDED, "now", () -> Ledger.checkOwner(plain, new ArrayList<>(), 1e300));
        List<RoundConfig> before = Collections.singletonList(plain);
        Raised.by(ErrorCode.BUDGET_EXCEEDED, "before", () -> Ledger.checkOwner(noised, before, 1e300));
    }

    private static List<RoundConfig> sums(Vectors given) {
        List<RoundConfig> sums = new ArrayList<>();
        for (int i = 0; i < given.at("sums").size(); i++) {
            sums.add(RoundConfig.parse(given.at("sums").at(i).bytes()));
        }
        return sums;
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
