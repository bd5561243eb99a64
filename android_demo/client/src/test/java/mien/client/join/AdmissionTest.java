package mien.client.join;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.time.Instant;
import java.util.HashSet;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Still;
import mien.client.Vectors;
import mien.client.secagg.VerifiedLeaf;
import org.junit.Test;

/** What a certificate says of its phone's admission is read and refused as in Python. */
public class AdmissionTest {
    @Test
    public void everyFormIsReadAsInPython() throws Exception {
        Vectors file = Vectors.load("golden/client/admissions.json");
        Still clock = new Still(Instant.parse(file.at("now").text()).toEpochMilli());
        LeafVerifier verify =
                new LeafVerifier(
                        Certificates.load(file.at("authority").bytes(), "the authority's"),
                        "default",
                        clock,
                        serial -> false);
        Set<String> ends = new HashSet<>();
        Vectors given = file.at("certificates");
        for (int i = 0; i < given.size(); i++) {
            Vectors each = given.at(i);
            String what = each.at("what").text();
            ends.add(each.at("ends").text());
            if (each.at("ends").text().equals("ok")) {
                VerifiedLeaf leaf = verify.verify(each.at("der").bytes());
                assertEquals(what, each.at("admitted_unix_s").number(), leaf.admittedUnixS);
                assertEquals(what, each.at("is_attested").flag(), leaf.isAttested);
            } else {
                Raised.by(ErrorCode.of(each.at("ends").text()), what, () -> verify.verify(each.at("der").bytes()));
            }
        }
        assertEquals(2, ends.size());
        assertTrue(given.size() > 20);
    }
}
