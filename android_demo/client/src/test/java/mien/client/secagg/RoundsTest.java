package mien.client.secagg;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.math.BigInteger;
import java.security.cert.X509Certificate;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.EnumSet;
import java.util.List;
import java.util.function.Predicate;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Still;
import mien.client.Vectors;
import mien.client.join.Certificates;
import mien.client.join.LeafVerifier;
import mien.client.join.RevocationList;
import org.junit.Test;

/** Whole rounds from the vectors: every message of every device, byte for byte, and everything that must be refused. */
public class RoundsTest {
    private static final String[] DRAWN = {
        "mask_key", "share_key", "kem_seed", "nonce", "b", "coefficients_b", "coefficients_mask_key", "encapsulations",
        "rounding_seed"
    };

    /** What the log was told, in order. */
    private static final class Log implements AttemptLog {
        final List<String> told = new ArrayList<>();

        @Override
        public void begin(RoundConfig config) {
            told.add("begin");
        }

        @Override
        public void recordMasked(AttemptId attempt) {
            told.add("masked");
        }

        @Override
        public void recordUnmasked(AttemptId attempt) {
            told.add("unmasked");
        }
    }

    private static Vectors file(String name) throws Exception {
        return Vectors.load("golden/secagg/" + name + ".json");
    }

    private static DeviceRound begin(Vectors file, Vectors device, Log log) {
        return begin(file, device, log, new Policy(2, EnumSet.allOf(Profile.class)), serial -> false);
    }

    private static DeviceRound begin(
            Vectors file, Vectors device, Log log, Policy policy, Predicate<BigInteger> isRevoked) {
        Vectors fields = file.at("config").at("fields");
        Vectors drawn = device.at("drawn");
        Deque<byte[]> chance = new ArrayDeque<>();
        for (String name : DRAWN) {
            if (drawn.has(name)) {
                byte[] bytes = drawn.at(name).bytes();
                int size = name.equals("encapsulations") ? Kem.CHANCE_BYTES : bytes.length;
                for (int at = 0; at < bytes.length; at += size) {
                    chance.add(Arrays.copyOfRange(bytes, at, at + size));
                }
            }
        }
        byte[] entry = file.at("messages").at("1").at(device.at("id").text()).bytes();
        byte[] certificate = Arrays.copyOfRange(entry, 2 + 178 + Kem.KEY_BYTES, entry.length);
        Expected expected =
                new Expected(
                        fields.at("task_id").bytes(),
                        fields.at("task_sha256").bytes(),
                        fields.at("model_sha256").bytes(),
                        fields.at("layout_sha256").bytes(),
                        fields.at("statement_sha256").bytes(),
                        fields.at("size").word(),
                        fields.at("num_metrics").word());
        Still clock = new Still(Instant.parse(file.at("now").text()).toEpochMilli());
        LeafVerifier verify = new LeafVerifier(authority(file), "default", clock, isRevoked);
        return new DeviceRound(
                file.at("invite").bytes(),
                new SumIdentity(
                        device.at("id").bytes(), certificate, new FixedSigner(device.at("identity_private").bytes())),
                expected,
                policy,
                verify,
                log,
                size -> {
                    byte[] next = chance.remove();
                    assertEquals(next.length, size);
                    return next;
                });
    }

    private static X509Certificate authority(Vectors file) {
        return Certificates.load(file.at("authority").bytes(), "the authority's");
    }

    private static byte[] told(Vectors file, int kind, String id) {
        Vectors messages = file.at("messages").at(String.valueOf(kind));
        return messages.at(messages.has("all") ? "all" : id).bytes();
    }

    private static Addends said(Vectors device) {
        return new Addends(
                device.at("weight").word(), device.at("update_float32_le").floats(), device.at("metrics").reals());
    }

    private static void everyDevice(String name) throws Exception {
        Vectors file = file(name);
        boolean isMalicious = file.at("config").at("fields").at("profile").number() == 1;
        for (int i = 0; i < file.at("devices").size(); i++) {
            Vectors device = file.at("devices").at(i);
            String id = device.at("id").text();
            Log log = new Log();
            DeviceRound round = begin(file, device, log);
            assertArrayEquals(id, told(file, 1, id), round.advertise());
            assertArrayEquals(id, told(file, 3, id), round.share(told(file, 2, id)));
            if (!file.at("messages").at("5").has(id)) {
                continue; // it was lost here
            }
            MaskedInput masked = round.mask(told(file, 4, id), said(device));
            assertArrayEquals(id, told(file, 5, id), masked.message);
            assertArrayEquals(id, device.at("payload").bytes(), masked.payload);
            if (isMalicious && !file.at("messages").at("7").has(id)) {
                continue;
            }
            byte[] agreed = round.agree(told(file, 6, id));
            if (isMalicious) {
                assertArrayEquals(id, told(file, 7, id), agreed);
            }
            if (file.at("messages").at("9").has(id)) {
                byte[] shares = isMalicious ? round.unmask(told(file, 8, id)) : agreed;
                assertArrayEquals(id, told(file, 9, id), shares);
                assertEquals(Arrays.asList("begin", "masked", "unmasked"), log.told);
                Raised.by(ErrorCode.REPLAY, "a second time", () -> round.unmask(told(file, 6, id)));
            }
        }
    }

    @Test
    public void everyMessageOfARoundOfNineWithTwoLosses() throws Exception {
        everyDevice("round_n9_two_losses");
    }

    @Test
    public void everyMessageOfACuriousRoundOfFive() throws Exception {
        everyDevice("round_n5_one_loss_curious");
    }

    @Test
    public void everyChangedMessageIsRefusedWithItsCode() throws Exception {
        Vectors file = file("round_n9_two_losses");
        Vectors cases = file("refused").at("cases");
        assertTrue(cases.size() >= 29);
        for (int i = 0; i < cases.size(); i++) {
            Vectors wrong = cases.at(i);
            Vectors device = file.at("devices").at(wrong.at("device").word());
            Raised.by(ErrorCode.of(wrong.at("code").text()), wrong.at("why").text(), () -> replay(file, device, wrong));
        }
    }

    private static void replay(Vectors file, Vectors device, Vectors wrong) {
        String id = device.at("id").text();
        int kind = wrong.at("kind").word();
        DeviceRound round = begin(file, device, new Log());
        round.advertise();
        try {
            for (int at : new int[] {2, 4, 6, 8}) {
                byte[] message = at == kind ? changed(told(file, at, id), wrong) : told(file, at, id);
                answer(round, at, message, device);
            }
        } catch (MienException error) {
            Raised.by(ErrorCode.LATE, "after an error", () -> round.unmask(new byte[0]));
            throw error;
        }
    }

    private static void answer(DeviceRound round, int kind, byte[] message, Vectors device) {
        switch (kind) {
            case 2:
                round.share(message);
                break;
            case 4:
                round.mask(message, said(device));
                break;
            case 6:
                round.agree(message);
                break;
            default:
                round.unmask(message);
        }
    }

    private static byte[] changed(byte[] message, Vectors wrong) {
        if (wrong.has("replace")) {
            return wrong.at("replace").bytes();
        }
        byte[] changed = message.clone();
        changed[wrong.at("offset").word()] ^= (byte) wrong.at("xor").word();
        return changed;
    }

    @Test
    public void aRosterInWhichSomebodyWasRevokedIsLeftAsInPython() throws Exception {
        Vectors given = Vectors.load("golden/client/revocations.json");
        Vectors file = file(given.at("round").text());
        for (int i = 0; i < given.at("rosters").size(); i++) {
            Vectors roster = given.at("rosters").at(i);
            String what = roster.at("list").text();
            byte[] der = new byte[0];
            for (int j = 0; j < given.at("lists").size(); j++) {
                Vectors list = given.at("lists").at(j);
                der = list.at("what").text().equals(what) ? list.at("der").bytes() : der;
            }
            RevocationList list = RevocationList.parse(der, authority(file));
            for (int j = 0; j < file.at("devices").size(); j++) {
                Vectors device = file.at("devices").at(j);
                String id = device.at("id").text();
                DeviceRound round = begin(file, device, new Log(), new Policy(2, EnumSet.allOf(Profile.class)), list::names);
                round.advertise();
                String ends = roster.at("ends").at(id).text();
                if (ends.equals("ok")) {
                    assertArrayEquals(what, told(file, 3, id), round.share(told(file, 2, id)));
                } else {
                    Raised.by(ErrorCode.of(ends), what, () -> round.share(told(file, 2, id)));
                    Raised.by(ErrorCode.LATE, "after an error", () -> round.share(told(file, 2, id)));
                }
            }
        }
        assertEquals(3, given.at("rosters").size());
    }

    @Test
    public void whomAnOwnerCountsIsAsInPython() throws Exception {
        Vectors file = Vectors.load("golden/client/admissions.json");
        Vectors device = file.at("devices").at(0);
        byte[] roster = told(file, 2, device.at("id").text());
        int refused = 0;
        for (int i = 0; i < file.at("owners").size(); i++) {
            Vectors owner = file.at("owners").at(i);
            int minCohort = owner.at("min_cohort").word();
            EnumSet<Profile> profiles = EnumSet.allOf(Profile.class);
            Vectors limit = owner.at("admitted_by_unix_ms");
            Policy policy =
                    limit.raw() == null
                            ? new Policy(minCohort, profiles)
                            : new Policy(
                                    minCohort,
                                    profiles,
                                    Math.floorDiv(limit.number(), 1000L),
                                    owner.at("counts_attested").flag());
            DeviceRound round = begin(file, device, new Log(), policy, serial -> false);
            round.advertise();
            String what = "owner " + i;
            if (owner.at("ends").text().equals("ok")) {
                round.share(roster);
            } else {
                Raised.by(ErrorCode.of(owner.at("ends").text()), what, () -> round.share(roster));
                Raised.by(ErrorCode.LATE, "after an error", () -> round.share(roster));
                refused++;
            }
            PeerCount peers = round.peers();
            assertArrayEquals(what, owner.at("peers").words(), new int[] {peers.total, peers.old, peers.attested});
        }
        assertTrue(refused > 3);
    }

    @Test
    public void termsThatTheDeviceHasNotAreRefused() throws Exception {
        Vectors file = file("round_n9_two_losses");
        byte[] invite = file.at("invite").bytes();
        invite[2 + 3] ^= 1; // another task's id
        Vectors device = file.at("devices").at(0);
        java.util.Map<Object, Object> other = new java.util.HashMap<>((java.util.Map<?, ?>) file.raw());
        other.put("invite", mien.client.wire.Bytes.hex(invite));
        Raised.by(ErrorCode.VIOLATION, "another task", () -> begin(Vectors.of(other), device, new Log()));
    }
}
