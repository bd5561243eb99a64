package mien.client.join;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;

import org.junit.Test;

/** A server may send a device to its own host and to names below it, and nowhere else. */
public class AddressTest {
    @Test
    public void aPortOfTheHostAndNamesBelowItAreFollowed() {
        String[][] followed = {
            {"c.example:7443", "c.example:7444"},
            {"c.example:7443", "C.Example:7443"},
            {"c.example:7443", "replica-1.c.example:7443"},
            {"c.example:7443", "a.b.c.example:443"},
            {"10.0.0.1:7443", "10.0.0.1:7444"},
            {"[::1]:7443", "[::1]:7444"},
        };
        for (String[] each : followed) {
            assertNotNull(each[1], new Address(each[0]).leadingTo(each[1]));
        }
        assertEquals("replica-1.c.example:7444", new Address("c.example:1").leadingTo("replica-1.c.example:7444").toString());
    }

    @Test
    public void nothingElseIs() {
        StringBuilder longest = new StringBuilder();
        for (int i = 0; i < 130; i++) {
            longest.append("a.");
        }
        String[][] refused = {
            {"c.example:7443", ""},
            {"c.example:7443", "c.example"},
            {"c.example:7443", "c.example:0"},
            {"c.example:7443", "c.example:65536"},
            {"c.example:7443", "d.example:7443"},
            {"c.example:7443", "example:7443"},
            {"c.example:7443", "evilc.example:7443"},
            {"c.example:7443", "c.example.evil:7443"},
            {"c.example:7443", ".c.example:7443"},
            {"c.example:7443", "a..c.example:7443"},
            {"c.example:7443", "192.168.0.1:80"},
            {"c.example:7443", "[::1]:7443"},
            {"c.example:7443", "c.example:7443\n"},
            {"c.example:7443", "user@c.example:7443"},
            {"c.example:7443", "dns://c.example:7443"},
            {"c.example:7443", longest + "c.example:7443"},
            {"10.0.0.1:7443", "10.0.0.2:7443"},
            {"10.0.0.1:7443", "1.10.0.0.1:7443"},
            {"[::1]:7443", "[::2]:7443"},
        };
        for (String[] each : refused) {
            assertNull(each[1], new Address(each[0]).leadingTo(each[1]));
        }
    }

    @Test
    public void anAuthorityHasItsBrackets() {
        assertEquals("[::1]:7443", new Address("[::1]:7443").authority());
        assertEquals("c.example:7443", new Address("c.example:7443").authority());
    }
}
