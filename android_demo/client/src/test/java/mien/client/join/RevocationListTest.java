package mien.client.join;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.math.BigInteger;
import java.security.cert.X509Certificate;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Vectors;
import org.junit.Before;
import org.junit.Test;

/** The registrar's list of revoked certificates: taken, refused and read as in Python. */
public class RevocationListTest {
    private Vectors file;
    private X509Certificate authority;
    private long nowMs;

    @Before
    public void load() throws Exception {
        file = Vectors.load("golden/client/revocations.json");
        authority = Certificates.load(file.at("authority").bytes(), "the authority's");
        nowMs = 1000 * file.at("now_unix_s").number();
    }

    private Vectors list(String what) {
        for (int i = 0; i < file.at("lists").size(); i++) {
            if (file.at("lists").at(i).at("what").text().equals(what)) {
                return file.at("lists").at(i);
            }
        }
        throw new IllegalArgumentException(what);
    }

    @Test
    public void eachListEndsAsInPython() {
        Set<String> codes = new HashSet<>();
        Set<String> serials = new HashSet<>(Collections.singleton("8"));
        for (int i = 0; i < file.at("lists").size(); i++) {
            Vectors names = file.at("lists").at(i).at("names");
            for (int j = 0; j < names.size(); j++) {
                serials.add(names.at(j).text());
            }
        }
        assertEquals("7, a device's, a long one, and 8, which no list names", 4, serials.size());
        for (int i = 0; i < file.at("lists").size(); i++) {
            Vectors given = file.at("lists").at(i);
            String what = given.at("what").text();
            String ends = given.at("ends").text();
            codes.add(ends);
            if (ends.equals(ErrorCode.CERTIFICATE.code())) {
                Raised.by(ErrorCode.CERTIFICATE, what, () -> RevocationList.parse(given.at("der").bytes(), authority));
                continue;
            }
            RevocationList list = RevocationList.parse(given.at("der").bytes(), authority);
            if (ends.equals(ErrorCode.COHORT.code())) {
                Raised.by(ErrorCode.COHORT, what, () -> list.checkAge(nowMs));
            } else {
                list.checkAge(nowMs);
            }
            Set<String> named = new HashSet<>();
            for (String serial : serials) {
                if (list.names(new BigInteger(serial))) {
                    named.add(serial);
                }
            }
            assertEquals(what, new HashSet<>((List<?>) given.at("names").raw()), named);
        }
        assertEquals(new HashSet<>(Arrays.asList("ok", "cohort", "certificate")), codes);
    }

    @Test
    public void aListThatIsTooOldSaysHowOld() {
        RevocationList list = RevocationList.parse(list("nobody is revoked").at("der").bytes(), authority);
        String told = Raised.by(ErrorCode.COHORT, "old", () -> list.checkAge(nowMs + 26 * 3_600_000L));
        assertTrue(told, told.contains("26 hours old, and 25 are the most"));
    }

    @Test
    public void aListOfTheFutureTellsNothingUntilItsTimeHasCome() {
        RevocationList list = RevocationList.parse(list("nobody is revoked").at("der").bytes(), authority);
        String told = Raised.by(ErrorCode.COHORT, "ahead", () -> list.checkAge(nowMs - 26 * 3_600_000L));
        assertTrue(told, told.contains("dated 26 hours ahead"));
        list.checkAge(nowMs - 24 * 3_600_000L);
    }

    @Test
    public void whatIsCutOffAnywhereOrChangedInAnyByteIsRefused() {
        byte[] der = list("one is revoked").at("der").bytes();
        Vectors taken = file.at("taken_with_one_bit_changed");
        assertEquals(1, taken.size());
        for (int at = 0; at < der.length; at++) {
            byte[] cut = Arrays.copyOf(der, at);
            Raised.by(ErrorCode.CERTIFICATE, "cut off at " + at, () -> RevocationList.parse(cut, authority));
            byte[] changed = der.clone();
            changed[at] ^= 1;
            if (at != taken.at(0).word()) {
                String what = "changed at " + at;
                Raised.by(ErrorCode.CERTIFICATE, what, () -> RevocationList.parse(changed, authority));
            }
        }
    }

    @Test
    public void moreThanAListCanHaveIsNotRead() {
        byte[] much = new byte[RevocationList.MAX_BYTES + 1];
        try {
            RevocationList.parse(much, authority);
        } catch (MienException error) {
            assertEquals(ErrorCode.CERTIFICATE, error.code());
            assertEquals("it was never parsed", null, error.getCause());
            return;
        }
        throw new AssertionError("taken");
    }
}
