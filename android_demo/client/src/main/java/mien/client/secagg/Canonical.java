package mien.client.secagg;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/** What is hashed and signed, byte for byte: tagged hashes, Merkle trees over a roster, sets of members as bits. */
public final class Canonical {
    static final int HASH_BYTES = 32;
    static final int ID_BYTES = 16;
    private static final String DOMAIN = "MSA2/";

    private Canonical() {}

    /** Returns what sets a hash or key of this protocol apart from all others: "MSA2/" label. */
    static byte[] domain(String label) {
        return (DOMAIN + label).getBytes(StandardCharsets.US_ASCII);
    }

    /** Returns H(tag, parts): SHA-256 over u16 length, "MSA2/" tag, then u64 length and part for each part. */
    public static byte[] hash(String tag, byte[]... parts) {
        byte[] name = domain(tag);
        MessageDigest digest = Bytes.sha256();
        digest.update(Bytes.bigEndian(name.length, 2));
        digest.update(name);
        for (byte[] part : parts) {
            digest.update(Bytes.bigEndian(part.length, 8));
            digest.update(part);
        }
        return digest.digest();
    }

    static byte[] leafHash(int index, byte[] entry) {
        return hash("leaf", Bytes.bigEndian(index, 4), entry);
    }

    /** Returns the length of every path of a tree, which is filled up to a power of two. */
    static int treeDepth(int numLeaves) {
        return 32 - Integer.numberOfLeadingZeros(numLeaves - 1);
    }

    static byte[] merkleRoot(List<byte[]> leaves) {
        List<byte[]> level = new ArrayList<>(leaves);
        level.addAll(Collections.nCopies((1 << treeDepth(leaves.size())) - leaves.size(), hash("leaf")));
        while (level.size() > 1) {
            List<byte[]> above = new ArrayList<>();
            for (int i = 0; i < level.size(); i += 2) {
                above.add(hash("node", level.get(i), level.get(i + 1)));
            }
            level = above;
        }
        return level.get(0);
    }

    static byte[] rootOfPath(byte[] leaf, int index, List<byte[]> path) {
        byte[] node = leaf;
        for (int depth = 0; depth < path.size(); depth++) {
            boolean isRight = (index >> depth & 1) == 1;
            node = isRight ? hash("node", path.get(depth), node) : hash("node", node, path.get(depth));
        }
        return node;
    }

    static int bitmapSize(int numMembers) {
        return (numMembers + 7) / 8;
    }

    /** Returns a set of indices as bits: member i is bit i mod 8, lowest first, of byte i div 8. */
    static byte[] packMembers(BitSet members, int numMembers) {
        return Arrays.copyOf(members.toByteArray(), bitmapSize(numMembers));
    }

    /** Returns the set in {@code bits}; throws CORRUPT_DATA for a wrong length or bits beyond the last member. */
    static BitSet unpackMembers(byte[] bits, int numMembers) {
        BitSet members = BitSet.valueOf(bits);
        if (bits.length != bitmapSize(numMembers) || members.length() > numMembers) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "a list of " + numMembers + " members is damaged; leave this round, check in again");
        }
        return members;
    }

    static byte[] membersHash(BitSet members, int numMembers) {
        return hash("members", Bytes.bigEndian(numMembers, 4), packMembers(members, numMembers));
    }
}
