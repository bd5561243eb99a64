package mien.client.log;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/** Proofs of an append-only Merkle tree as RFC 9162, section 2.1, defines them; a device checks, and makes none. */
public final class Merkle {
    static final int HASH_BYTES = 32;
    static final long MAX_SIZE = 1L << 53;

    private Merkle() {}

    /** Returns the root of the tree without leaves. */
    public static byte[] emptyRoot() {
        return Bytes.sha256(new byte[0]);
    }

    /** Returns the hash of a leaf: SHA-256 of 0x00 and its entry. */
    public static byte[] leafHash(byte[] entry) {
        return Bytes.sha256(new byte[] {0}, entry);
    }

    private static byte[] nodeHash(byte[] left, byte[] right) {
        return Bytes.sha256(new byte[] {1}, left, right);
    }

    /** Throws TRANSPARENCY unless the proof leads from a leaf hash to the root (section 2.1.3.2). */
    public static void checkInclusion(byte[] leaf, long index, long size, List<byte[]> proof, byte[] root) {
        if (!isIncluded(leaf, index, size, proof, root)) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY,
                    "the log does not hold at " + Long.toUnsignedString(index) + " of " + size
                            + " what it was said to hold there");
        }
    }

    private static boolean isIncluded(byte[] leaf, long index, long size, List<byte[]> proof, byte[] root) {
        if (index < 0 || index >= size || size > MAX_SIZE || !areHashes(proof)) {
            return false;
        }
        long left = index;
        long last = size - 1;
        byte[] reached = leaf;
        for (byte[] sibling : proof) {
            if (last == 0) {
                return false;
            }
            if (left % 2 == 1 || left == last) {
                reached = nodeHash(sibling, reached);
                while (left % 2 == 0 && left > 0) {
                    left >>= 1;
                    last >>= 1;
                }
            } else {
                reached = nodeHash(reached, sibling);
            }
            left >>= 1;
            last >>= 1;
        }
        return last == 0 && Arrays.equals(reached, root);
    }

    /** Throws TRANSPARENCY unless the proof shows that one tree begins the other (section 2.1.4.2). */
    public static void checkConsistency(long first, byte[] firstRoot, long size, byte[] root, List<byte[]> proof) {
        if (!isConsistent(first, firstRoot, size, root, proof)) {
            throw new MienException(
                    ErrorCode.TRANSPARENCY,
                    "the log's " + size + " entries do not begin with the " + first + " that it showed before");
        }
    }

    private static boolean isConsistent(long first, byte[] firstRoot, long size, byte[] root, List<byte[]> proof) {
        if (first < 0 || first > size || size > MAX_SIZE || !areHashes(proof)) {
            return false;
        }
        if (first == 0 || first == size) {
            return proof.isEmpty() && Arrays.equals(firstRoot, first == size ? root : emptyRoot());
        }
        List<byte[]> path = new ArrayList<>(proof);
        if (Long.bitCount(first) == 1) {
            path.add(0, firstRoot);
        }
        if (path.isEmpty()) {
            return false;
        }
        long old = first - 1;
        long last = size - 1;
        while (old % 2 == 1) {
            old >>= 1;
            last >>= 1;
        }
        byte[] reachedFirst = path.get(0);
        byte[] reached = path.get(0);
        for (byte[] sibling : path.subList(1, path.size())) {
            if (last == 0) {
                return false;
            }
            if (old % 2 == 1 || old == last) {
                reachedFirst = nodeHash(sibling, reachedFirst);
                reached = nodeHash(sibling, reached);
                while (old % 2 == 0 && old > 0) {
                    old >>= 1;
                    last >>= 1;
                }
            } else {
                reached = nodeHash(reached, sibling);
            }
            old >>= 1;
            last >>= 1;
        }
        return last == 0 && Arrays.equals(reachedFirst, firstRoot) && Arrays.equals(reached, root);
    }

    private static boolean areHashes(List<byte[]> proof) {
        for (byte[] each : proof) {
            if (each.length != HASH_BYTES) {
                return false;
            }
        }
        return true;
    }
}
