package mien.client.server;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;

import java.util.Arrays;
import mien.client.join.Address;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Where a device was told to go is known after its process ended, and followed no further than it was told in the first place. */
public class LastAddressTest {
    private static final Address JOINED = new Address("fleet.example:7443");
    @Rule public final TemporaryFolder folder = new TemporaryFolder();

    private Folder home() {
        return new Folder(folder.getRoot().toPath());
    }

    /** What a process that starts with this home begins at. */
    private String begun() {
        return new CoordinatorClient.LastAddress(home()).from(JOINED).toString();
    }

    @Test
    public void aNewProcessBeginsWhereTheLastOneWasTold() {
        assertEquals(JOINED.toString(), begun());
        new CoordinatorClient.LastAddress(home()).note("b.fleet.example:7444");
        assertEquals("b.fleet.example:7444", begun());
        new CoordinatorClient.LastAddress(home()).note("");
        assertEquals(JOINED.toString(), begun());
        assertFalse(home().has(CoordinatorClient.LastAddress.FILE));
    }

    @Test
    public void whatLeavesTheFleetForgetsIt() {
        CoordinatorClient.LastAddress last = new CoordinatorClient.LastAddress(home());
        last.note("b.fleet.example:7444");
        last.forget();
        assertEquals(JOINED.toString(), begun());
    }

    @Test
    public void whatIsKeptIsTrustedNoMoreThanWhatIsTold() {
        byte[] long_ = new byte[100_000];
        Arrays.fill(long_, (byte) 'a');
        byte[][] wrong = {
            Bytes.utf8("fleet.example.elsewhere:7443"),
            Bytes.utf8("elsewhere:7443"),
            Bytes.utf8("fleet.example:0"),
            Bytes.utf8("b.fleet.example:7443\n"),
            {(byte) 0xff, 0, 1},
            {},
            long_,
        };
        for (byte[] kept : wrong) {
            home().write(CoordinatorClient.LastAddress.FILE, kept);
            assertEquals(JOINED.toString(), begun());
        }
    }

    @Test
    public void whatCannotBeReadOrWrittenStopsNobody() {
        home().folder(CoordinatorClient.LastAddress.FILE).write("in-the-way", new byte[] {1});
        new CoordinatorClient.LastAddress(home()).note("b.fleet.example:7444");
        new CoordinatorClient.LastAddress(home()).note("");
        assertEquals(JOINED.toString(), begun());
    }
}
