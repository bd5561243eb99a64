package mien.client.secagg;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/** What a device makes of message 2: the topology, its own index, and its checked neighbours by index. */
final class Roster {
    private static final int FULL_MAX = 256;

    /** A neighbour whose entry was checked. */
    static final class Peer {
        final Entry entry;
        final VerifiedLeaf leaf;

        Peer(Entry entry, VerifiedLeaf leaf) {
            this.entry = entry;
            this.leaf = leaf;
        }
    }

    final Topology topology;
    final int index;
    /** By ascending index, which is the order of ids. */
    final TreeMap<Integer, Peer> neighbours;

    private Roster(Topology topology, int index, TreeMap<Integer, Peer> neighbours) {
        this.topology = topology;
        this.index = index;
        this.neighbours = neighbours;
    }

    byte[] binding() {
        return topology.binding;
    }

    /**
     * Returns the roster in message 2 once everything in it that this device can check holds; throws VIOLATION or
     * CERTIFICATE for one that does not, COHORT for too few devices or one that was revoked.
     */
    static Roster read(byte[] message, RoundConfig config, Entry own, VerifyLeaf verify) {
        MessageReader in = new MessageReader(message, MessageReader.ROSTER);
        boolean isFull = in.number(1, 1) == 0;
        int n = in.number(2, Graph.MAX_DEVICES);
        return isFull ? readFull(in, n, config, own, verify) : readSparse(in, n, config, own, verify);
    }

    private static Roster readFull(MessageReader in, int n, RoundConfig config, Entry own, VerifyLeaf verify) {
        List<Entry> entries = new ArrayList<>();
        List<byte[]> ids = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            Entry entry = Entry.read(in);
            entries.add(entry);
            ids.add(entry.id);
        }
        in.end();
        int index = checkIds(ids, config, own, true);
        if (!Arrays.equals(entries.get(index).toBytes(), own.toBytes())) {
            throw wrong("holds other keys for this device than it announced");
        }
        List<byte[]> leaves = new ArrayList<>();
        Map<Integer, Entry> others = new TreeMap<>();
        for (int i = 0; i < n; i++) {
            leaves.add(Canonical.leafHash(i, entries.get(i).toBytes()));
            if (i != index) {
                others.put(i, entries.get(i));
            }
        }
        Topology topology = new Topology(config, ids, Canonical.merkleRoot(leaves));
        TreeMap<Integer, Peer> peers = checkPeers(others, own, config, verify);
        Set<Integer> near = new HashSet<>();
        for (int neighbour : topology.graph.neighbours(index)) {
            near.add(neighbour);
        }
        peers.keySet().retainAll(near);
        return new Roster(topology, index, peers);
    }

    private static Roster readSparse(MessageReader in, int n, RoundConfig config, Entry own, VerifyLeaf verify) {
        List<byte[]> ids = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            ids.add(in.take(Canonical.ID_BYTES));
        }
        int index = checkIds(ids, config, own, false);
        int depth = Canonical.treeDepth(n);
        byte[] root = Canonical.rootOfPath(Canonical.leafHash(index, own.toBytes()), index, readPath(in, depth));
        Topology topology = new Topology(config, ids, root);
        Map<Integer, Entry> entries = new TreeMap<>();
        for (int neighbour : topology.graph.neighbours(index)) {
            Entry entry = Entry.read(in);
            byte[] leaf = Canonical.leafHash(neighbour, entry.toBytes());
            byte[] found = Canonical.rootOfPath(leaf, neighbour, readPath(in, depth));
            if (!Arrays.equals(entry.id, ids.get(neighbour)) || !Arrays.equals(found, root)) {
                throw wrong("names other neighbours than the graph does");
            }
            entries.put(neighbour, entry);
        }
        in.end();
        return new Roster(topology, index, checkPeers(entries, own, config, verify));
    }

    private static List<byte[]> readPath(MessageReader in, int depth) {
        List<byte[]> path = new ArrayList<>();
        for (int i = 0; i < depth; i++) {
            path.add(in.take(Canonical.HASH_BYTES));
        }
        return path;
    }

    /** Returns the own index in a list of ids whose length and order hold. */
    private static int checkIds(List<byte[]> ids, RoundConfig config, Entry own, boolean isFull) {
        int n = ids.size();
        if (n < config.fewest) {
            throw new MienException(
                    ErrorCode.COHORT,
                    n + " devices are in the roster, " + config.fewest + " are needed; leave, check in again");
        }
        if (n > config.most || isFull != (n <= FULL_MAX)) {
            throw wrong("is not one that this round's configuration allows");
        }
        int index = -1;
        for (int i = 0; i < n; i++) {
            if (i > 0 && Bytes.compare(ids.get(i - 1), ids.get(i)) >= 0) {
                throw wrong("repeats devices or is not in order");
            }
            index = Arrays.equals(ids.get(i), own.id) ? i : index;
        }
        if (index < 0) {
            throw wrong("leaves this device out");
        }
        return index;
    }

    private static TreeMap<Integer, Peer> checkPeers(
            Map<Integer, Entry> entries, Entry own, RoundConfig config, VerifyLeaf verify) {
        List<Entry> everybody = new ArrayList<>(entries.values());
        everybody.add(own);
        Set<String> keys = new HashSet<>();
        for (Entry entry : everybody) {
            for (byte[] key : new byte[][] {entry.maskKey, entry.shareKey, entry.kemKey}) {
                if (!keys.add(Bytes.hex(key))) {
                    throw wrong("holds one key twice");
                }
            }
        }
        TreeMap<Integer, Peer> peers = new TreeMap<>();
        for (Map.Entry<Integer, Entry> each : entries.entrySet()) {
            Entry entry = each.getValue();
            VerifiedLeaf leaf = verify.verify(entry.certificate);
            Keys.checkIdentity(leaf, entry.id);
            Keys.verify(leaf.key, entry.statement(config.sha256()), entry.signature, "the entry of device " + Keys.shortName(entry.id));
            peers.put(each.getKey(), new Peer(entry, leaf));
        }
        return peers;
    }

    private static MienException wrong(String why) {
        return new MienException(ErrorCode.VIOLATION, "the roster " + why + "; leave this round");
    }
}
