package mien.client.secagg;

import java.util.List;
import mien.client.wire.Bytes;

/** The members of an attempt by index (in the order of their ids), who is whose neighbour, and R. */
final class Topology {
    /** R: the hash of roster and configuration that everything else is bound to. */
    final byte[] binding;
    final List<byte[]> ids;
    final Graph.Hood hood;
    final Graph graph;

    Topology(RoundConfig config, List<byte[]> ids, byte[] root) {
        this.ids = ids;
        byte[] all = Bytes.concat(ids.toArray(new byte[0][]));
        binding = Canonical.hash("roster", config.sha256(), all, root);
        hood = Graph.resolve(config.profile, ids.size(), config.k, config.t);
        graph = new Graph(ids.size(), hood.k, Canonical.hash("graph", binding));
    }

    int size() {
        return ids.size();
    }

    /** Returns the index of an id, -1 for a stranger's. */
    int indexOf(byte[] id) {
        for (int i = 0; i < ids.size(); i++) {
            if (Bytes.compare(ids.get(i), id) == 0) {
                return i;
            }
        }
        return -1;
    }
}
