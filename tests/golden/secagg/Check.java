// A third implementation of protocol MSA2, on the JDK alone: recomputes the vectors from their inputs.
//
// java Check.java FILE, where FILE holds lines "path=value": the JSON files flattened, byte strings in hex.
// Ends with status 0 and "checks N", or prints what differs and ends with status 1.

import java.math.BigInteger;
import java.nio.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.security.*;
import java.security.spec.*;
import java.util.*;
import javax.crypto.*;
import javax.crypto.spec.*;

public class Check {
    static final Map<String, String> VALUES = new HashMap<>();
    static final int KEM = 1088, KEM_KEY = 1184;  // lengths of what the JDK 17 has no code for: secrets of KEMs are given
    static int checks = 0, failures = 0;

    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            int at = line.indexOf('=');
            VALUES.put(line.substring(0, at), line.substring(at + 1));
        }
        primitives();
        signatures();
        for (int i = 0; has("rosters.cases." + i + ".n"); i++) roster("rosters.cases." + i);
        masks();
        sharing();
        numbers();
        round("round_n9_two_losses");
        round("round_n5_one_loss_curious");
        System.out.println("checks " + checks);
        System.exit(failures == 0 ? 0 : 1);
    }

    // Values

    static boolean has(String path) { return VALUES.containsKey(path); }
    static String text(String path) {
        if (!has(path)) throw new IllegalArgumentException("no value " + path);
        return VALUES.get(path);
    }
    static long number(String path) { return Long.parseLong(text(path)); }
    static double real(String path) { return Double.parseDouble(text(path)); }
    static byte[] bytes(String path) { return unhex(text(path)); }
    static int size(String path) { int n = 0; while (has(path + "." + n) || any(path + "." + n + ".")) n++; return n; }
    static boolean any(String prefix) { return VALUES.keySet().stream().anyMatch(key -> key.startsWith(prefix)); }
    static int[] words(String path) {
        int[] result = new int[size(path)];
        for (int i = 0; i < result.length; i++) result[i] = (int) number(path + "." + i);
        return result;
    }
    static float[] floats(String path) {
        FloatBuffer buffer = ByteBuffer.wrap(bytes(path)).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer();
        float[] result = new float[buffer.remaining()];
        buffer.get(result);
        return result;
    }
    static String hex(byte[] data) { return HexFormat.of().formatHex(data); }
    static byte[] unhex(String text) { return HexFormat.of().parseHex(text); }
    static void same(String what, Object expected, Object found) {
        checks++;
        if (!expected.equals(found)) {
            failures++;
            System.out.println(what + ": expected " + expected + ", found " + found);
        }
    }
    static void same(String what, byte[] expected, byte[] found) { same(what, hex(expected), hex(found)); }
    static void same(String what, int[] expected, int[] found) { same(what, Arrays.toString(expected), Arrays.toString(found)); }

    // Primitives

    static byte[] concat(byte[]... parts) {
        int n = 0;
        for (byte[] part : parts) n += part.length;
        ByteBuffer all = ByteBuffer.allocate(n);
        for (byte[] part : parts) all.put(part);
        return all.array();
    }
    static byte[] u32(long value) { return ByteBuffer.allocate(4).putInt((int) value).array(); }
    static byte[] sha256(byte[] data) throws Exception { return MessageDigest.getInstance("SHA-256").digest(data); }
    static byte[] hash(String tag, byte[]... parts) throws Exception {
        byte[] name = ("MSA2/" + tag).getBytes(StandardCharsets.US_ASCII);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        digest.update(ByteBuffer.allocate(2).putShort((short) name.length).array());
        digest.update(name);
        for (byte[] part : parts) {
            digest.update(ByteBuffer.allocate(8).putLong(part.length).array());
            digest.update(part);
        }
        return digest.digest();
    }
    static byte[] hmac(byte[] key, byte[] data) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(data);
    }
    static byte[] derive(byte[] ikm, byte[] binding, String label, byte[]... ids) throws Exception {
        byte[] info = concat(("MSA2/" + label).getBytes(StandardCharsets.US_ASCII), concat(ids));
        return hmac(hmac(binding, ikm), concat(info, new byte[] {1}));
    }
    static byte[] agree(byte[] secret, byte[] peer) throws Exception {
        KeyFactory keys = KeyFactory.getInstance("X25519");
        KeyAgreement agreement = KeyAgreement.getInstance("X25519");
        agreement.init(keys.generatePrivate(new PKCS8EncodedKeySpec(concat(unhex("302e020100300506032b656e04220420"), secret))));
        agreement.doPhase(keys.generatePublic(new X509EncodedKeySpec(concat(unhex("302a300506032b656e032100"), peer))), true);
        return agreement.generateSecret();
    }
    static byte[] maskKey(byte[] secret) throws Exception { return derive(secret, new byte[32], "mask"); }
    static byte[] xor(byte[] a, byte[] b) {
        byte[] out = new byte[a.length];
        for (int i = 0; i < out.length; i++) out[i] = (byte) (a[i] ^ b[i]);
        return out;
    }
    static byte[] publicOf(byte[] secret) throws Exception {
        byte[] base = new byte[32];
        base[0] = 9;
        return agree(secret, base);
    }
    static byte[] open(byte[] key, byte[] aad, byte[] sealed) throws Exception {
        Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
        cipher.init(Cipher.DECRYPT_MODE, new SecretKeySpec(key, "AES"), new GCMParameterSpec(128, new byte[12]));
        cipher.updateAAD(aad);
        return cipher.doFinal(sealed);
    }
    static int[] stream(byte[] seed, int count) throws Exception {
        Cipher cipher = Cipher.getInstance("AES/CTR/NoPadding");
        byte[] counter = Arrays.copyOfRange(seed, 16, 32);
        counter[12] = counter[13] = counter[14] = 0;
        counter[15] = 2;
        cipher.init(Cipher.ENCRYPT_MODE, new SecretKeySpec(seed, 0, 16, "AES"), new IvParameterSpec(counter));
        byte[] out = cipher.update(new byte[4 * count + 16]);
        int[] words = new int[count];
        ByteBuffer.wrap(out).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(words);
        return words;
    }
    static byte[] pack(int[] words, int bytesEach) {
        byte[] out = new byte[words.length * bytesEach];
        for (int i = 0; i < words.length; i++)
            for (int j = 0; j < bytesEach; j++) out[i * bytesEach + j] = (byte) (words[i] >>> 8 * j);
        return out;
    }
    static byte[] members(Set<Integer> members, int n) {
        byte[] bits = new byte[(n + 7) / 8];
        for (int member : members) bits[member / 8] |= 1 << member % 8;
        return bits;
    }
    static byte[] membersHash(byte[] bits, int n) throws Exception { return hash("members", u32(n), bits); }
    static boolean verifies(String suite, byte[] spki, byte[] message, byte[] signature) {
        try {
            boolean p256 = suite.equals("ecdsa_p256");
            if (p256) {
                if (signature.length != 64) return false;
                BigInteger order = new BigInteger("FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551", 16);
                if (new BigInteger(1, Arrays.copyOfRange(signature, 32, 64)).compareTo(order.shiftRight(1)) > 0) return false;
            }
            Signature verifier = Signature.getInstance(p256 ? "SHA256withECDSAinP1363Format" : "Ed25519");
            verifier.initVerify(KeyFactory.getInstance(p256 ? "EC" : "Ed25519").generatePublic(new X509EncodedKeySpec(spki)));
            verifier.update(message);
            return verifier.verify(signature);
        } catch (GeneralSecurityException | RuntimeException error) {
            return false;
        }
    }

    // The files

    static byte[] configBytes(String p) {
        ByteBuffer b = ByteBuffer.allocate(1024);
        b.put((byte) number(p + ".version")).put((byte) number(p + ".suite")).put((byte) number(p + ".profile"));
        b.put(bytes(p + ".task_id")).put(bytes(p + ".task_sha256"));
        b.putLong(number(p + ".round")).putShort((short) number(p + ".attempt"));
        b.put(bytes(p + ".model_sha256")).put(bytes(p + ".layout_sha256")).put(bytes(p + ".statement_sha256"));
        b.putInt((int) number(p + ".size")).put((byte) number(p + ".num_metrics"));
        for (String name : List.of("ring_bits", "frac_bits", "metric_frac_bits")) b.put((byte) number(p + "." + name));
        for (String name : List.of("l2_clip", "coordinate_clip", "metric_bound")) b.putFloat((float) real(p + "." + name));
        for (String name : List.of("max_weight", "n_min", "n_max", "k", "t")) b.putShort((short) number(p + "." + name));
        b.put((byte) number(p + ".mechanism"));
        for (String name : List.of("noise_multiplier", "target_epsilon", "delta")) b.putFloat((float) real(p + "." + name));
        for (int i = 0; i < 5; i++) b.putInt((int) number(p + ".deadlines." + i));
        return Arrays.copyOf(b.array(), b.position());
    }

    static void primitives() throws Exception {
        String p = "primitives";
        for (int i = 0; has(p + ".tagged_hash." + i + ".tag"); i++) {
            String c = p + ".tagged_hash." + i;
            byte[][] parts = new byte[size(c + ".parts")][];
            for (int j = 0; j < parts.length; j++) parts[j] = bytes(c + ".parts." + j);
            same(c, bytes(c + ".hash"), hash(text(c + ".tag"), parts));
        }
        for (int i = 0; has(p + ".config." + i + ".bytes"); i++) {
            String c = p + ".config." + i;
            same(c, bytes(c + ".bytes"), configBytes(c + ".fields"));
            same(c, bytes(c + ".sha256"), hash("cfg", configBytes(c + ".fields")));
        }
        for (int i = 0; has(p + ".members." + i + ".n"); i++) {
            String c = p + ".members." + i;
            int n = (int) number(c + ".n");
            Set<Integer> set = new TreeSet<>();
            for (int member : words(c + ".members")) set.add(member);
            same(c, bytes(c + ".bits"), members(set, n));
            same(c, bytes(c + ".hash"), membersHash(members(set, n), n));
        }
        byte[] a = bytes(p + ".agreement.private.0"), b = bytes(p + ".agreement.private.1"), binding = bytes(p + ".binding");
        byte[] u = bytes(p + ".ids.0"), v = bytes(p + ".ids.1");
        same("public a", bytes(p + ".agreement.public.0"), publicOf(a));
        same("public b", bytes(p + ".agreement.public.1"), publicOf(b));
        byte[] dh = agree(a, publicOf(b)), shared = concat(dh, bytes(p + ".kem.secret"));
        same("shared", bytes(p + ".agreement.shared"), dh);
        byte[] low = Arrays.compareUnsigned(u, v) < 0 ? u : v, high = low == u ? v : u;
        byte[] maskA = bytes(p + ".mask_secrets.0"), maskB = bytes(p + ".mask_secrets.1");
        same("mask key", a, maskKey(maskA));
        byte[] part = derive(maskA, binding, "part", u, v), peerPart = derive(maskB, binding, "part", v, u);
        same("part u v", bytes(p + ".part_u_to_v"), part);
        same("part v u", bytes(p + ".part_v_to_u"), peerPart);
        same("cover", bytes(p + ".cover"), xor(part, derive(peerPart, binding, "cover", low, high)));
        same("pair", bytes(p + ".pair_seed"), derive(concat(dh, part), binding, "pair", low, high));
        same("enc u v", bytes(p + ".enc_key_u_to_v"), derive(shared, binding, "enc", u, v));
        same("enc v u", bytes(p + ".enc_key_v_to_u"), derive(shared, binding, "enc", v, u));
        same("self", bytes(p + ".self_seed"), derive(bytes(p + ".b"), binding, "self", u));
        same("com_b", bytes(p + ".commitment_b"), hash("b", binding, u, bytes(p + ".b")));
        byte[] key = derive(shared, binding, "enc", u, v), sealed = bytes(p + ".shares_sealed_u_to_v");
        same("kem ciphertext", bytes(p + ".kem.ciphertext"), from(sealed, 0, KEM));
        same("sealed", bytes(p + ".shares_plain"), open(key, concat(binding, u, v, from(sealed, 0, KEM)), from(sealed, KEM, 112)));
        for (int i = 0; has(p + ".refused_sealed_u_to_v." + i + ".why"); i++) {
            boolean opened = true;
            byte[] bad = bytes(p + ".refused_sealed_u_to_v." + i + ".sealed");
            try { open(key, concat(binding, u, v, from(bad, 0, KEM)), from(bad, KEM, 112)); } catch (AEADBadTagException error) { opened = false; }
            same(text(p + ".refused_sealed_u_to_v." + i + ".why"), false, opened);
        }
        for (int i = 0; has(p + ".refused_agreement_keys." + i); i++) {
            boolean agreed = true;
            try { agree(a, bytes(p + ".refused_agreement_keys." + i)); } catch (InvalidKeyException error) { agreed = false; }
            same("small order " + i, false, agreed);
        }
    }

    static void signatures() throws Exception {
        byte[] message = bytes("primitives.signed_message");
        for (String suite : List.of("ecdsa_p256", "ed25519")) {
            String p = "primitives." + suite;
            byte[] spki = bytes(p + ".public_spki");
            same(p + " id", bytes(p + ".id"), Arrays.copyOf(sha256(spki), 16));
            same(p, true, verifies(suite, spki, message, bytes(p + ".signature")));
            for (int i = 0; has(p + ".refused." + i + ".why"); i++)
                same(p + text(p + ".refused." + i + ".why"), false, verifies(suite, spki, message, bytes(p + ".refused." + i + ".signature")));
        }
        Signature signer = Signature.getInstance("Ed25519");
        byte[] secret = bytes("primitives.ed25519.private");
        signer.initSign(KeyFactory.getInstance("Ed25519").generatePrivate(new PKCS8EncodedKeySpec(concat(unhex("302e020100300506032b657004220420"), secret))));
        signer.update(message);
        same("ed25519 signs", bytes("primitives.ed25519.signature"), signer.sign());
    }

    static byte[] node(byte[][] entries, int low, int high) throws Exception {
        if (high - low == 1) return low < entries.length ? hash("leaf", u32(low), entries[low]) : hash("leaf");
        int middle = (low + high) / 2;
        return hash("node", node(entries, low, middle), node(entries, middle, high));
    }
    static byte[] merkleRoot(byte[][] entries) throws Exception {
        int width = 1;
        while (width < entries.length) width *= 2;
        return node(entries, 0, width);
    }
    static int[] permutation(byte[] seed, int n) throws Exception {
        int[] order = new int[n], words = stream(seed, 4 * n);
        for (int i = 0; i < n; i++) order[i] = i;
        int next = 0;
        for (int last = n - 1; last > 0; last--) {
            long size = last + 1, limit = (1L << 32) / size * size, word;
            do word = Integer.toUnsignedLong(words[next++]); while (word >= limit);
            int other = (int) (word % size), kept = order[last];
            order[last] = order[other];
            order[other] = kept;
        }
        return order;
    }
    static int[] neighbours(int[] order, int k, int index) {
        int n = order.length;
        TreeSet<Integer> found = new TreeSet<>();
        if (k == n - 1) {
            for (int i = 0; i < n; i++) if (i != index) found.add(i);
        } else {
            int place = 0;
            while (order[place] != index) place++;
            for (int step = 1; step <= k / 2; step++) {
                found.add(order[(place + step) % n]);
                found.add(order[(place - step + n) % n]);
            }
        }
        return found.stream().mapToInt(Integer::intValue).toArray();
    }
    static void roster(String p) throws Exception {
        int n = (int) number(p + ".n"), k = (int) number(p + ".k");
        byte[][] ids = new byte[n][], entries = new byte[n][];
        for (int i = 0; i < n; i++) {
            ids[i] = bytes(p + ".ids." + i);
            entries[i] = concat(ids[i], bytes(p + ".entry_suffix"));
            if (i > 0) same(p + " order", true, Arrays.compareUnsigned(ids[i - 1], ids[i]) < 0);
        }
        byte[] root = merkleRoot(entries), binding = hash("roster", bytes(p + ".config_sha256"), concat(ids), root);
        same(p + " root", bytes(p + ".merkle_root"), root);
        same(p + " R", bytes(p + ".binding"), binding);
        byte[] seed = hash("graph", binding);
        same(p + " seed", bytes(p + ".graph_seed"), seed);
        int[] order = permutation(seed, n);
        same(p + " permutation", words(p + ".permutation"), order);
        same(p + " first", words(p + ".neighbours_of_0"), neighbours(order, k, 0));
        same(p + " last", words(p + ".neighbours_of_last"), neighbours(order, k, n - 1));
        ByteBuffer all = ByteBuffer.allocate(2 * n * k);
        for (int i = 0; i < n; i++) for (int j : neighbours(order, k, i)) all.putShort((short) j);
        same(p + " all", bytes(p + ".all_neighbours_sha256"), sha256(all.array()));
    }

    static void masks() throws Exception {
        for (int i = 0; has("masks.cases." + i + ".seed"); i++) {
            String p = "masks.cases." + i;
            int[] words = stream(bytes(p + ".seed"), (int) number(p + ".num_words"));
            same(p + " first", words(p + ".first_words"), Arrays.copyOf(words, 4));
            same(p + " last", words(p + ".last_words"), Arrays.copyOfRange(words, words.length - 4, words.length));
            same(p, bytes(p + ".sha256"), sha256(pack(words, 4)));
        }
    }

    static int times(int a, int b) {
        int product = 0;
        for (; b != 0; b >>= 1) {
            if ((b & 1) != 0) product ^= a;
            a = a << 1 ^ ((a & 0x80) != 0 ? 0x11b : 0);
        }
        return product;
    }
    static int inverse(int a) {
        int result = 1;
        for (int i = 0; i < 254; i++) result = times(result, a);
        return result;
    }
    static byte[] combine(Map<Integer, byte[]> shares) {
        byte[] secret = new byte[32];
        for (int i : shares.keySet()) {
            int weight = 1;
            for (int j : shares.keySet()) if (j != i) weight = times(weight, times(j, inverse(j ^ i)));
            for (int b = 0; b < 32; b++) secret[b] ^= (byte) times(weight, shares.get(i)[b] & 0xff);
        }
        return secret;
    }
    static byte[] shareAt(int x, byte[] secret, byte[][] rows) {
        byte[] share = new byte[32];
        for (int b = 0; b < 32; b++) {
            int value = 0;
            for (int row = rows.length - 1; row >= 0; row--) value = times(value ^ rows[row][b] & 0xff, x);
            share[b] = (byte) (value ^ secret[b]);
        }
        return share;
    }
    static byte[][] rows(byte[] coefficients) {
        byte[][] rows = new byte[coefficients.length / 32][];
        for (int i = 0; i < rows.length; i++) rows[i] = Arrays.copyOfRange(coefficients, 32 * i, 32 * i + 32);
        return rows;
    }
    static void sharing() throws Exception {
        byte[] exp = new byte[255], log = new byte[255], mul = new byte[65536], secret = bytes("shamir.secret");
        for (int power = 0, value = 1; power < 255; power++, value = times(value, 3)) {
            exp[power] = (byte) value;
            log[value - 1] = (byte) power;
        }
        for (int a = 0; a < 256; a++) for (int b = 0; b < 256; b++) mul[256 * a + b] = (byte) times(a, b);
        same("exp", bytes("shamir.exp_sha256"), sha256(exp));
        same("log", bytes("shamir.log_sha256"), sha256(log));
        same("mul", bytes("shamir.mul_sha256"), sha256(mul));
        byte[][] rows = {bytes("shamir.coefficients.0"), bytes("shamir.coefficients.1")};
        for (int x = 1; x <= 5; x++) same("share " + x, bytes("shamir.shares." + (x - 1)), shareAt(x, secret, rows));
        for (String kind : List.of("subsets", "below_threshold"))
            for (int i = 0; any("shamir." + kind + "." + i + "."); i++) {
                String p = "shamir." + kind + "." + i;
                Map<Integer, byte[]> chosen = new TreeMap<>();
                for (int x : words(p + ".x")) chosen.put(x, bytes("shamir.shares." + (x - 1)));
                same(p, bytes(p + (kind.equals("subsets") ? ".secret" : ".not_the_secret")), combine(chosen));
            }
        byte[][] many = rows(bytes("shamir.large.coefficients"));
        byte[][] shares = new byte[99][];
        for (int x = 1; x <= 99; x++) shares[x - 1] = shareAt(x, secret, many);
        same("large", bytes("shamir.large.sha256"), sha256(concat(shares)));
    }

    static int quantise(double value, double bound, int fracBits, int random) {
        double clipped = Math.max(-bound, Math.min(bound, value));
        return (int) Math.floor(clipped * Math.pow(2, fracBits) + Integer.toUnsignedLong(random) * 0x1p-32);
    }
    static int[] encode(String p, String c, byte[] binding, int[] random) throws Exception {
        int d = (int) number(c + ".size"), m = (int) number(c + ".num_metrics"), weight = (int) number(p + ".weight");
        float[] update = floats(p + ".update_float32_le");
        double squares = 0, clip = real(c + ".l2_clip");
        for (float x : update) squares += (double) x * x;
        boolean within = Math.sqrt(squares) <= clip;
        double factor = within ? 1 : clip / Math.sqrt(squares);
        int[] vector = new int[d + m + 4];
        vector[0] = 1;
        vector[1] = weight;
        vector[2] = within ? 1 : 0;
        for (int i = 0; i < m; i++)
            vector[3 + i] = weight * quantise(real(p + ".metrics." + i), real(c + ".metric_bound"), (int) number(c + ".metric_frac_bits"), random[i]);
        for (int i = 0; i < d; i++)
            vector[4 + m + i] = weight * quantise(update[i] * factor, real(c + ".coordinate_clip"), (int) number(c + ".frac_bits"), random[m + i]);
        int[] r = stream(hash("checksum", binding), vector.length);
        int sum = 0;
        for (int i = 0; i < vector.length; i++) if (i != 3 + m) sum += r[i] * vector[i];
        vector[3 + m] = sum;
        return vector;
    }
    static void addMask(int[] vector, byte[] seed, int sign) throws Exception {
        int[] mask = stream(seed, vector.length);
        for (int i = 0; i < vector.length; i++) vector[i] += sign * mask[i];
    }
    static void numbers() throws Exception {
        float[] update = floats("numbers.update_float32_le");
        int[] random = words("numbers.random");
        for (int i = 0; any("numbers.cases." + i + "."); i++) {
            String p = "numbers.cases." + i;
            int[] out = new int[update.length];
            for (int j = 0; j < out.length; j++)
                out[j] = (int) number(p + ".weight") * quantise(update[j] * real(p + ".factor"), real(p + ".coordinate_clip"), (int) number(p + ".frac_bits"), random[j]);
            same(p, words(p + ".words"), out);
        }
        int[] metrics = new int[4];
        for (int i = 0; i < 4; i++)
            metrics[i] = (int) number("numbers.metrics.weight") * quantise(real("numbers.metrics.values." + i), real("numbers.metrics.bound"), (int) number("numbers.metrics.frac_bits"), random[i]);
        same("metrics", words("numbers.metrics.words"), metrics);
        same("pack 32", bytes("numbers.packing.packed_32"), pack(words("numbers.packing.words"), 4));
        same("pack 24", bytes("numbers.packing.packed_24"), pack(words("numbers.packing.words"), 3));
        String m = "numbers.masked";
        int[] total = new int[words(m + ".sum").length];
        for (int i = 0; i < 3; i++) {
            String p = m + ".devices." + i;
            int[] vector = encode(p, m + ".config", bytes(m + ".binding"), words(p + ".random"));
            same(p + " vector", words(p + ".vector"), vector);
            for (int j = 0; j < total.length; j++) total[j] += vector[j];
            addMask(vector, bytes(p + ".self_seed"), 1);
            for (int j = 0; any(m + ".pair_seeds." + j + "."); j++) {
                String pair = m + ".pair_seeds." + j;
                if (number(pair + ".lower") == i) addMask(vector, bytes(pair + ".seed"), 1);
                if (number(pair + ".higher") == i) addMask(vector, bytes(pair + ".seed"), -1);
            }
            same(p + " masked", words(p + ".masked"), vector);
        }
        same("masked sum", words(m + ".sum"), total);
    }

    // A whole round: every device's messages 1, 3 and 5 from its chance, and the server's opening from message 9.

    static byte[] from(byte[] data, int start, int length) { return Arrays.copyOfRange(data, start, start + length); }

    static void round(String p) throws Exception {
        int n = size(p + ".devices"), t = (int) number(p + ".t"), k = (int) number(p + ".k");
        String fields = p + ".config.fields";
        byte[] configHash = hash("cfg", configBytes(fields)), binding = bytes(p + ".binding");
        byte[][] ids = new byte[n][], entries = new byte[n][], maskSecrets = new byte[n][], spki = new byte[n][];
        String[] names = new String[n];
        for (int i = 0; i < n; i++) {
            String d = p + ".devices." + i;
            names[i] = text(d + ".id");
            ids[i] = bytes(d + ".id");
            maskSecrets[i] = maskKey(bytes(d + ".drawn.mask_key"));
            byte[] message = bytes(p + ".messages.1." + names[i]);
            entries[i] = from(message, 2, message.length - 2);
            byte[] kem = from(entries[i], 80, KEM_KEY), nonce = bytes(d + ".drawn.nonce");
            byte[] keys = concat(ids[i], publicOf(maskSecrets[i]), publicOf(bytes(d + ".drawn.share_key")), kem, nonce);
            int signed = keys.length;
            same(p + " entry " + i, keys, from(entries[i], 0, signed));
            byte[] certificate = from(entries[i], signed + 66, entries[i].length - signed - 66);
            spki[i] = java.security.cert.CertificateFactory.getInstance("X.509").generateCertificate(new java.io.ByteArrayInputStream(certificate)).getPublicKey().getEncoded();
            same(p + " id " + i, ids[i], Arrays.copyOf(sha256(spki[i]), 16));
            byte[] statement = hash("adv", configHash, ids[i], from(keys, 16, 32), from(keys, 48, 32), kem, nonce);
            same(p + " adv " + i, true, verifies("ecdsa_p256", spki[i], statement, from(entries[i], signed, 64)));
        }
        same(p + " R", binding, hash("roster", configHash, concat(ids), merkleRoot(entries)));
        same(p + " complete", n - 1, k);
        for (int u = 0; u < n; u++) shares(p, u, ids, names, binding, t, spki[u]);
        byte[] sharers = from(bytes(p + ".messages.4." + names[0]), 2, (n + 7) / 8), survivors = from(bytes(p + ".messages.6.all"), 2, (n + 7) / 8);
        byte[] sharersHash = membersHash(sharers, n), survivorsHash = membersHash(survivors, n);
        same(p + " U2", bytes(p + ".signed.sharers_hash"), sharersHash);
        int words = (int) (number(fields + ".size") + number(fields + ".num_metrics")) + 4;
        int[] total = new int[words];
        for (int u = 0; u < n; u++) {
            if ((survivors[u / 8] >> u % 8 & 1) == 0) continue;
            byte[] payload = masked(p, u, ids, binding, fields, words);
            same(p + " payload " + u, bytes(p + ".devices." + u + ".payload"), payload);
            byte[] message = bytes(p + ".messages.5." + names[u]);
            same(p + " hash " + u, from(message, 2, 32), sha256(payload));
            byte[] covers = covers(p, u, ids, binding);
            same(p + " covers " + u, covers, from(message, 34, covers.length));
            byte[] statement = hash("masked", binding, sharersHash, sha256(payload), covers);
            same(p + " sig " + u, true, verifies("ecdsa_p256", spki[u], statement, from(message, 34 + covers.length, 64)));
            int[] part = new int[words];
            ByteBuffer.wrap(payload).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(part);
            for (int i = 0; i < words; i++) total[i] += part[i];
            if (has(p + ".messages.7." + names[u])) {
                byte[] consistency = hash("consist", binding, sharersHash, survivorsHash);
                same(p + " agree " + u, true, verifies("ecdsa_p256", spki[u], consistency, from(bytes(p + ".messages.7." + names[u]), 2, 64)));
            }
        }
        for (int owner = 0; owner < n; owner++) unmask(p, owner, ids, names, binding, survivors, t, total);
        same(p + " count", (int) number(p + ".result.count"), total[0]);
        same(p + " weight", (int) number(p + ".result.weight"), total[1]);
        same(p + " unclipped", (int) number(p + ".result.num_unclipped"), total[2]);
        int m = (int) number(fields + ".num_metrics");
        same(p + " metrics", words(p + ".result.metric_steps"), Arrays.copyOfRange(total, 3, 3 + m));
        same(p + " sum", words(p + ".result.update_steps"), Arrays.copyOfRange(total, 4 + m, words));
    }

    static void shares(String p, int u, byte[][] ids, String[] names, byte[] binding, int t, byte[] spki) throws Exception {
        String d = p + ".devices." + u;
        byte[] message = bytes(p + ".messages.3." + names[u]);
        int n = ids.length, at = 3;
        for (int v = 0, x = 1; v < n; v++) {
            if (v == u) continue;
            same(p + " x", x, message[at] & 0xff);
            byte[] agreed = agree(bytes(p + ".devices." + v + ".drawn.share_key"), publicOf(bytes(d + ".drawn.share_key")));
            byte[] secret = concat(agreed, bytes(d + ".kem_secrets." + (x - 1))), kem = from(message, at + 1, KEM);
            byte[] plain = open(derive(secret, binding, "enc", ids[u], ids[v]), concat(binding, ids[u], ids[v], kem), from(message, at + 1 + KEM, 112));
            byte[] expected = concat(
                shareAt(x, bytes(d + ".drawn.b"), rows(bytes(d + ".drawn.coefficients_b"))),
                shareAt(x, bytes(d + ".drawn.mask_key"), rows(bytes(d + ".drawn.coefficients_mask_key"))),
                derive(bytes(d + ".drawn.mask_key"), binding, "part", ids[u], ids[v]));
            same(p + " shares " + u + " to " + v, expected, plain);
            at += 1 + KEM + 112;
            x++;
        }
        same(p + " com_b " + u, hash("b", binding, ids[u], bytes(d + ".drawn.b")), from(message, at, 32));
        byte[] statement = hash("shares", binding, ids[u], from(message, 2, at - 2), from(message, at, 32));
        same(p + " shares sig " + u, true, verifies("ecdsa_p256", spki, statement, from(message, at + 32, 64)));
    }

    static byte[] masked(String p, int u, byte[][] ids, byte[] binding, String fields, int words) throws Exception {
        String d = p + ".devices." + u;
        int[] vector = encode(d, fields, binding, stream(bytes(d + ".drawn.rounding_seed"), words - 4));
        addMask(vector, derive(bytes(d + ".drawn.b"), binding, "self", ids[u]), 1);
        for (int v = 0; v < ids.length; v++) {
            if (v == u) continue;
            addMask(vector, pair(p, u, v, ids, binding, bytes(d + ".drawn.mask_key")), u < v ? 1 : -1);
        }
        return pack(vector, 4);
    }

    /** The seed of u and v by u's secret: the half that X25519 does not make is the lower one's part for the higher. */
    static byte[] pair(String p, int u, int v, byte[][] ids, byte[] binding, byte[] secret) throws Exception {
        byte[] agreed = agree(maskKey(secret), publicOf(maskKey(bytes(p + ".devices." + v + ".drawn.mask_key"))));
        int low = Math.min(u, v), high = Math.max(u, v);
        byte[] part = derive(bytes(p + ".devices." + low + ".drawn.mask_key"), binding, "part", ids[low], ids[high]);
        return derive(concat(agreed, part), binding, "pair", ids[low], ids[high]);
    }

    static byte[] covers(String p, int u, byte[][] ids, byte[] binding) throws Exception {
        byte[] all = {(byte) (ids.length - 1 - u)};
        for (int v = u + 1; v < ids.length; v++) {
            byte[] part = derive(bytes(p + ".devices." + u + ".drawn.mask_key"), binding, "part", ids[u], ids[v]);
            byte[] peer = derive(bytes(p + ".devices." + v + ".drawn.mask_key"), binding, "part", ids[v], ids[u]);
            all = concat(all, xor(part, derive(peer, binding, "cover", ids[u], ids[v])));
        }
        return all;
    }

    static void unmask(String p, int owner, byte[][] ids, String[] names, byte[] binding, byte[] survivors, int t, int[] total) throws Exception {
        boolean survived = (survivors[owner / 8] >> owner % 8 & 1) != 0;
        Map<Integer, byte[]> found = new TreeMap<>();
        for (int holder = 0; holder < ids.length && found.size() < t; holder++) {
            if (holder == owner || !has(p + ".messages.9." + names[holder])) continue;
            byte[] answer = bytes(p + ".messages.9." + names[holder]);
            int place = owner - (owner > holder ? 1 : 0), x = holder + (holder < owner ? 1 : 0);
            same(p + " kind", survived ? 1 : 2, (int) answer[3 + 33 * place]);
            found.put(x, from(answer, 4 + 33 * place, 32));
        }
        byte[] secret = combine(found);
        if (survived) {
            same(p + " b " + owner, bytes(p + ".devices." + owner + ".drawn.b"), secret);
            addMask(total, derive(secret, binding, "self", ids[owner]), -1);
            return;
        }
        for (int v = 0; v < ids.length; v++) {
            if (v == owner || (survivors[v / 8] >> v % 8 & 1) == 0) continue;
            addMask(total, pair(p, owner, v, ids, binding, secret), v < owner ? -1 : 1);
        }
    }
}
