package mien.client.join;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Still;
import mien.client.Vectors;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.wire.Bytes;
import mien.client.wire.Invite;
import mien.client.wire.Json;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** A phone whose identity's key is gone joins its fleet again by another invite, and no other fleet. */
public class LostKeyTest {
    private static final String USED = "used-token-used-token-used";

    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private Joining joining;
    private String fleet;

    @Before
    public void join() throws Exception {
        byte[] authority = Vectors.load("golden/secagg/round_n9_two_losses.json").at("authority").bytes();
        fleet = Certificates.fingerprint(Certificates.load(authority, "the authority's"));
        Folder home = new Folder(temporary.getRoot().toPath());
        Map<String, Object> stored = new LinkedHashMap<>();
        stored.put("device_id", "00");
        stored.put("population", "default");
        for (String name : new String[] {"certificate", "registrar_ca", "coordinator_ca"}) {
            stored.put(name, Bytes.hex(authority)); // a certificate, and for another key than the home has
        }
        stored.put("registrar_address", "127.0.0.1:1");
        stored.put("coordinator_address", "127.0.0.1:1");
        stored.put("invite_sha256", Bytes.hex(Bytes.sha256(Bytes.utf8(USED))));
        stored.put("release_key", "");
        stored.put("sha256", Bytes.hex(Bytes.sha256(Bytes.utf8(Json.write(stored)))));
        home.write("identity.json", Bytes.utf8(Json.write(stored)));
        Vault vault = new Vault(home.folder("key"), new FileKeyProvider(home.folder("keys")), "identity");
        joining = new Joining(home, new FileIdentityKeys(vault), new Still(0), new Random(1));
    }

    private Invite invite(String fingerprint, String token) {
        return Invite.parse("mien://join?r=127.0.0.1:1&rf=" + fingerprint + "&cf=" + fingerprint + "&t=" + token);
    }

    @Test
    public void everyInviteOfItsFleetIsTakenToTheRegistrar() {
        Raised.by(ErrorCode.CERTIFICATE, "the identity as it is", joining::load);
        for (String token : new String[] {USED, "new-token-new-token-new-token"}) {
            Raised.by(ErrorCode.UNREACHABLE, "nobody is at the address", () -> joining.join(invite(fleet, token), () -> {}));
        }
        assertTrue("nothing is given up before there is another", joining.hasJoined());
        assertNull(joining.loadUnlessLost());
        assertEquals("who it was is not forgotten", "00", joining.deviceId());
    }

    @Test
    public void anotherFleetsInviteIsNot() {
        String other = fleet.replace('0', '1').replace('2', '3');
        assertFalse(other.equals(fleet));
        Raised.by(ErrorCode.ALREADY_EXISTS, "another fleet", () -> joining.join(invite(other, USED), () -> {}));
    }
}
