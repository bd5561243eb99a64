package mien.client.secagg;

import java.util.Set;

/**
 * The owner's policy: the smallest sum, which server may be assumed honest, and whom to count towards that smallest sum.
 *
 * <p>Of the others, those count whom the registrar admitted by a time: a coordinator that has phones made for one sum is not
 * helped by them. Where attested keys count, younger phones with one count as well.
 */
public final class Policy {
    final int minCohort;
    final Set<Profile> profiles;
    private final long admittedByUnixS;
    private final boolean countsAttested;

    /** Counts everybody. */
    public Policy(int minCohort, Set<Profile> profiles) {
        this(minCohort, profiles, Long.MAX_VALUE, false);
    }

    /** Counts who was admitted by that second since 1970. */
    public Policy(int minCohort, Set<Profile> profiles, long admittedByUnixS, boolean countsAttested) {
        this.minCohort = minCohort;
        this.profiles = profiles;
        this.admittedByUnixS = admittedByUnixS;
        this.countsAttested = countsAttested;
    }

    /** Returns how many of a device's neighbours count. */
    PeerCount count(Iterable<Roster.Peer> neighbours) {
        int total = 0;
        int old = 0;
        int attested = 0;
        for (Roster.Peer each : neighbours) {
            boolean isOld = each.leaf.admittedUnixS <= admittedByUnixS;
            total++;
            old += isOld ? 1 : 0;
            attested += !isOld && countsAttested && each.leaf.isAttested ? 1 : 0;
        }
        return new PeerCount(total, old, attested);
    }

    /** Returns the words for what else lets a neighbour count. */
    String orAttested() {
        return countsAttested ? " or have an attested key" : "";
    }
}
