package mien.client.secagg;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PublicKey;
import java.security.spec.X509EncodedKeySpec;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Vectors;
import mien.client.wire.Bytes;
import org.junit.Test;

/** Every derivation of the protocol against the vectors that Python wrote. */
public class PrimitivesTest {
    private static Vectors file(String name) throws Exception {
        return Vectors.load("golden/secagg/" + name + ".json");
    }

    @Test
    public void hashesAndConfigurations() throws Exception {
        Vectors file = file("primitives");
        Vectors hashes = file.at("tagged_hash");
        for (int i = 0; i < hashes.size(); i++) {
            Vectors parts = hashes.at(i).at("parts");
            byte[][] given = new byte[parts.size()][];
            for (int j = 0; j < given.length; j++) {
                given[j] = parts.at(j).bytes();
            }
            assertArrayEquals(hashes.at(i).at("hash").bytes(), Canonical.hash(hashes.at(i).at("tag").text(), given));
        }
        Vectors configs = file.at("config");
        for (int i = 0; i < configs.size(); i++) {
            RoundConfig config = RoundConfig.parse(configs.at(i).at("bytes").bytes());
            assertArrayEquals(configs.at(i).at("sha256").bytes(), config.sha256());
            Vectors fields = configs.at(i).at("fields");
            assertEquals(fields.at("round").number(), config.attemptId.round);
            assertEquals(fields.at("size").number(), config.size);
            assertEquals(fields.at("n_max").number(), config.most);
            assertEquals(fields.at("max_weight").number(), config.numbers.maxWeight);
        }
    }

    @Test
    public void aConfigurationThatIsChangedIsRefused() throws Exception {
        byte[] good = file("primitives").at("config").at(0).at("bytes").bytes();
        Raised.by(ErrorCode.CORRUPT_DATA, "cut off", () -> RoundConfig.parse(Arrays.copyOf(good, good.length - 1)));
        byte[] version = good.clone();
        version[0] = 1;
        Raised.by(ErrorCode.VERSION, "another version", () -> RoundConfig.parse(version));
        assertArrayEquals("kept by an earlier program", good, RoundConfig.ofKept(version).toBytes());
        byte[] wraps = good.clone();
        wraps[163] = 48; // frac_bits
        Raised.by(ErrorCode.CONFIG, "a sum that wraps", () -> RoundConfig.parse(wraps));
    }

    @Test
    public void setsOfMembers() throws Exception {
        Vectors cases = file("primitives").at("members");
        for (int i = 0; i < cases.size(); i++) {
            int n = cases.at(i).at("n").word();
            BitSet members = new BitSet();
            for (int member : cases.at(i).at("members").words()) {
                members.set(member);
            }
            assertArrayEquals(cases.at(i).at("bits").bytes(), Canonical.packMembers(members, n));
            assertArrayEquals(cases.at(i).at("hash").bytes(), Canonical.membersHash(members, n));
            assertEquals(members, Canonical.unpackMembers(cases.at(i).at("bits").bytes(), n));
        }
    }

    @Test
    public void keysAndSealing() throws Exception {
        Vectors file = file("primitives");
        byte[] binding = file.at("binding").bytes();
        byte[] u = file.at("ids").at(0).bytes();
        byte[] v = file.at("ids").at(1).bytes();
        byte[] a = file.at("agreement").at("private").at(0).bytes();
        byte[] b = file.at("agreement").at("private").at(1).bytes();
        byte[] aPublic = Keys.publicOf(a);
        byte[] bPublic = Keys.publicOf(b);
        assertArrayEquals(file.at("agreement").at("public").at(0).bytes(), aPublic);
        assertArrayEquals(file.at("agreement").at("public").at(1).bytes(), bPublic);
        assertArrayEquals(file.at("agreement").at("shared").bytes(), Keys.agree(a, bPublic));
        byte[] maskSecret = file.at("mask_secrets").at(0).bytes();
        assertArrayEquals(a, Keys.maskKey(maskSecret));
        byte[] part = Keys.part(maskSecret, binding, u, v);
        byte[] peerPart = Keys.part(file.at("mask_secrets").at(1).bytes(), binding, v, u);
        assertArrayEquals(file.at("part_u_to_v").bytes(), part);
        assertArrayEquals(file.at("part_v_to_u").bytes(), peerPart);
        boolean isLower = Bytes.compare(u, v) < 0;
        byte[] covered = Keys.cover(part, peerPart, binding, isLower ? u : v, isLower ? v : u);
        assertArrayEquals(file.at("cover").bytes(), covered);
        assertArrayEquals(file.at("pair_seed").bytes(), Keys.pairSeed(a, bPublic, part, binding, u, v));
        assertArrayEquals(file.at("pair_seed").bytes(), Keys.pairSeed(b, aPublic, part, binding, v, u));
        Kem kem = new Kem(file.at("kem").at("seed").bytes());
        assertArrayEquals(file.at("kem").at("public").bytes(), kem.publicKey());
        byte[][] encapsulated = Kem.encapsulate(kem.publicKey(), file.at("kem").at("chance").bytes());
        assertArrayEquals(file.at("kem").at("secret").bytes(), encapsulated[0]);
        assertArrayEquals(file.at("kem").at("ciphertext").bytes(), encapsulated[1]);
        assertArrayEquals(encapsulated[0], kem.decapsulate(encapsulated[1]));
        byte[] both = Bytes.concat(Keys.agree(a, bPublic), encapsulated[0]);
        assertArrayEquals(file.at("enc_key_v_to_u").bytes(), Keys.derive(both, binding, "enc", v, u));
        Vectors noKeys = file.at("kem").at("refused_public");
        for (int i = 0; i < noKeys.size(); i++) {
            byte[] key = noKeys.at(i).bytes();
            Raised.by(ErrorCode.VIOLATION, "KEM key " + i, () -> Kem.encapsulate(key, new byte[32]));
        }
        byte[] secretB = file.at("b").bytes();
        assertArrayEquals(file.at("self_seed").bytes(), Keys.selfSeed(secretB, binding, u));
        assertArrayEquals(file.at("commitment_b").bytes(), Keys.commitment(secretB, binding, u));
        byte[] plain = file.at("shares_plain").bytes();
        byte[] sealed = file.at("shares_sealed_u_to_v").bytes();
        assertArrayEquals(sealed, Keys.seal(a, bPublic, encapsulated, binding, u, v, plain));
        assertArrayEquals(plain, Keys.open(b, kem, aPublic, binding, u, v, sealed));
        Vectors refused = file.at("refused_sealed_u_to_v");
        for (int i = 0; i < refused.size(); i++) {
            String why = refused.at(i).at("why").text();
            assertNull(why, Keys.open(b, kem, aPublic, binding, u, v, refused.at(i).at("sealed").bytes()));
        }
        Vectors weak = file.at("refused_agreement_keys");
        for (int i = 0; i < weak.size(); i++) {
            byte[] key = weak.at(i).bytes();
            Raised.by(ErrorCode.VIOLATION, "key " + i, () -> Keys.agree(a, key));
        }
    }

    @Test
    public void signatures() throws Exception {
        Vectors file = file("primitives");
        byte[] message = file.at("signed_message").bytes();
        Vectors ecdsa = file.at("ecdsa_p256");
        PublicKey key = publicKey(ecdsa.at("public_spki").bytes());
        assertArrayEquals(ecdsa.at("id").bytes(), Keys.identityId(key));
        byte[] signature = ecdsa.at("signature").bytes();
        Keys.verify(key, message, signature, "it");
        assertArrayEquals(signature, Keys.sign(new FixedSigner(ecdsa.at("private").bytes()), message));
        Vectors refused = ecdsa.at("refused");
        for (int i = 0; i < refused.size(); i++) {
            byte[] bad = refused.at(i).at("signature").bytes();
            String why = refused.at(i).at("why").text();
            Raised.by(ErrorCode.VIOLATION, why, () -> Keys.verify(key, message, bad, "it"));
        }
    }

    /** A round is left for it: one that waits for a key store to mend would wait for ever. */
    @Test
    public void aSignatureThatIsNoneIsNoKeyStoreOutOfReach() {
        byte[][] bad = {new byte[0], {0x30, 6, 2, 1}, {0x30, 6, 2, -1, 1, 2, 1, 1}, {0x30, 4, 2, 0, 2, 0}};
        for (byte[] der : bad) {
            Raised.by(ErrorCode.OTHER, Bytes.hex(der), () -> Keys.sign(message -> der, new byte[1]));
        }
        assertFalse(ErrorCode.OTHER.isOutOfReach() || ErrorCode.OTHER.isGone());
    }

    private static PublicKey publicKey(byte[] spki) throws GeneralSecurityException {
        return KeyFactory.getInstance("EC").generatePublic(new X509EncodedKeySpec(spki));
    }

    @Test
    public void rostersAndGraphs() throws Exception {
        Vectors cases = file("rosters").at("cases");
        assertEquals(3, cases.size());
        for (int i = 0; i < cases.size(); i++) {
            Vectors given = cases.at(i);
            int n = given.at("n").word();
            List<byte[]> leaves = new ArrayList<>();
            byte[][] ids = new byte[n][];
            for (int j = 0; j < n; j++) {
                ids[j] = given.at("ids").at(j).bytes();
                leaves.add(Canonical.leafHash(j, Bytes.concat(ids[j], given.at("entry_suffix").bytes())));
            }
            byte[] root = Canonical.merkleRoot(leaves);
            assertArrayEquals(given.at("merkle_root").bytes(), root);
            byte[] binding = Canonical.hash("roster", given.at("config_sha256").bytes(), Bytes.concat(ids), root);
            assertArrayEquals(given.at("binding").bytes(), binding);
            byte[] seed = Canonical.hash("graph", binding);
            assertArrayEquals(given.at("graph_seed").bytes(), seed);
            assertArrayEquals(given.at("permutation").words(), Graph.permutation(seed, n));
            Graph graph = new Graph(n, given.at("k").word(), seed);
            assertArrayEquals(given.at("neighbours_of_0").words(), graph.neighbours(0));
            assertArrayEquals(given.at("neighbours_of_last").words(), graph.neighbours(n - 1));
        }
    }

    @Test
    public void safeNeighbourhoods() {
        Graph.check(Profile.MALICIOUS_SERVER, 1000, new Graph.Hood(96, 67));
        Graph.check(Profile.MALICIOUS_SERVER, 500, new Graph.Hood(80, 56));
        for (int[] kt : new int[][] {{80, 50}, {10, 9}, {96, 48}}) {
            Raised.by(
                    ErrorCode.CONFIG,
                    "k " + kt[0] + ", t " + kt[1],
                    () -> Graph.check(Profile.MALICIOUS_SERVER, 500, new Graph.Hood(kt[0], kt[1])));
        }
    }

    @Test
    public void masksOfAMillionWords() throws Exception {
        Vectors cases = file("masks").at("cases");
        for (int i = 0; i < cases.size(); i++) {
            int[] words = new WordStream(cases.at(i).at("seed").bytes()).take(cases.at(i).at("num_words").word());
            ByteBuffer bytes = ByteBuffer.allocate(4 * words.length).order(ByteOrder.LITTLE_ENDIAN);
            bytes.asIntBuffer().put(words);
            assertArrayEquals(cases.at(i).at("sha256").bytes(), Bytes.sha256(bytes.array()));
            int[] added = new int[words.length];
            WordStream.addTo(added, cases.at(i).at("seed").bytes(), false);
            assertArrayEquals(words, added);
            WordStream.addTo(added, cases.at(i).at("seed").bytes(), true);
            assertArrayEquals(new int[words.length], added);
        }
    }

    @Test
    public void shares() throws Exception {
        Vectors file = file("shamir");
        byte[] coefficients = Bytes.concat(file.at("coefficients").at(0).bytes(), file.at("coefficients").at(1).bytes());
        byte[][] shares = Shamir.split(file.at("secret").bytes(), 3, 5, size -> coefficients);
        for (int x = 0; x < 5; x++) {
            assertArrayEquals(file.at("shares").at(x).bytes(), shares[x]);
        }
        byte[] many = file.at("large").at("coefficients").bytes();
        byte[][] large = Shamir.split(file.at("secret").bytes(), 67, 99, size -> many);
        assertArrayEquals(file.at("large").at("sha256").bytes(), Bytes.sha256(large));
    }

    @Test
    public void numbers() throws Exception {
        Vectors file = file("numbers");
        float[] update = file.at("update_float32_le").floats();
        int[] random = file.at("random").words();
        Vectors cases = file.at("cases");
        for (int i = 0; i < cases.size(); i++) {
            Vectors given = cases.at(i);
            double scale = Math.pow(2, given.at("frac_bits").real());
            int[] words = new int[update.length];
            for (int j = 0; j < words.length; j++) {
                double value = update[j] * given.at("factor").real();
                words[j] =
                        given.at("weight").word()
                                * NumberFormat.quantise(value, given.at("coordinate_clip").real(), scale, random[j]);
            }
            assertArrayEquals(given.at("words").words(), words);
        }
        int[] words = file.at("packing").at("words").words();
        assertArrayEquals(file.at("packing").at("packed_32").bytes(), VectorCodec.pack(words, 32));
        assertArrayEquals(file.at("packing").at("packed_24").bytes(), VectorCodec.pack(words, 24));
    }
}
