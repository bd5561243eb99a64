package mien.client.tasks;

import java.util.Collections;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.secagg.Profile;

/**
 * What the owner agreed to; by default sums over 16 devices or more, safe from a server that breaks the rules, the same
 * pictures in one of them over one model, and 24 a day.
 */
public final class Agreement {
    public final int minCohort;
    public final Set<Profile> profiles;
    /** What a task may show the coordinator besides, by the names of its {@code reveals}. */
    public final Set<String> reveals;
    /** Most sums without noise of phones' own that the same pictures go into over one model. */
    public final int maxSumsPerModel;
    /** Most such sums in 24 hours, over whatever models. */
    public final int maxSumsPerDay;
    /** Only devices that the registrar admitted so many days ago count towards {@link #minCohort}; 0 for all. */
    public final int minPeerAgeDays;
    /** Whether younger ones count as well whose hardware attested their key. */
    public final boolean countsAttestedPeers;
    /** The most that all sums together, of whatever population, may tell of this device; infinite without a limit. */
    public final double maxEpsilon;
    /** Whether these pictures also measure models, by sums of scores. */
    public final boolean measures;

    /** What a task {@code reveals} that opens sums of templates multiplied with themselves. */
    public static final String CLASS_MOMENT = "class_moment";

    public static final int SUMS_PER_MODEL = 1;
    public static final int SUMS_PER_DAY = 24;

    /** Agrees to the defaults. */
    public Agreement() {
        this(16, EnumSet.of(Profile.MALICIOUS_SERVER));
    }

    /** Agrees to sums over so many devices and more, under one of these profiles, and to nothing revealed. */
    public Agreement(int minCohort, Set<Profile> profiles) {
        this(minCohort, profiles, Collections.<String>emptySet());
    }

    /** Agrees to what tasks reveal besides, too. */
    public Agreement(int minCohort, Set<Profile> profiles, Set<String> reveals) {
        this(minCohort, profiles, reveals, SUMS_PER_MODEL, SUMS_PER_DAY);
    }

    /** Agrees to other limits on sums of the same pictures, too; throws CONFIG for limits that let it into none. */
    public Agreement(
            int minCohort, Set<Profile> profiles, Set<String> reveals, int maxSumsPerModel, int maxSumsPerDay) {
        this(minCohort, profiles, reveals, maxSumsPerModel, maxSumsPerDay, 0, false, Double.POSITIVE_INFINITY, true);
    }

    /** Throws CONFIG for limits that let this device into no sum at all, or that are no numbers. */
    private Agreement(
            int minCohort,
            Set<Profile> profiles,
            Set<String> reveals,
            int maxSumsPerModel,
            int maxSumsPerDay,
            int minPeerAgeDays,
            boolean countsAttestedPeers,
            double maxEpsilon,
            boolean measures) {
        if (maxSumsPerModel < 1 || maxSumsPerDay < 1) {
            throw new MienException(
                    ErrorCode.CONFIG, "the most sums over one model, and in a day, are at least 1; or do not take part");
        }
        if (minPeerAgeDays < 0 || minPeerAgeDays > 3650) {
            throw new MienException(
                    ErrorCode.CONFIG, "the least age of peers is " + minPeerAgeDays + " days; it must be 0 to 3650");
        }
        if (!(maxEpsilon > 0)) {
            throw new MienException(ErrorCode.CONFIG, "the largest epsilon is " + maxEpsilon + "; it must be positive");
        }
        this.minCohort = minCohort;
        this.profiles = Collections.unmodifiableSet(new HashSet<>(profiles)); // what was agreed to, whatever becomes of theirs
        this.reveals = Collections.unmodifiableSet(new HashSet<>(reveals));
        this.maxSumsPerModel = maxSumsPerModel;
        this.maxSumsPerDay = maxSumsPerDay;
        this.minPeerAgeDays = minPeerAgeDays;
        this.countsAttestedPeers = countsAttestedPeers;
        this.maxEpsilon = maxEpsilon;
        this.measures = measures;
    }

    /**
     * Returns the same, counting towards the smallest sum only phones that the registrar admitted so many days ago, and where
     * attested keys count, younger ones with one.
     */
    public Agreement withPeers(int minAgeDays, boolean countsAttested) {
        return new Agreement(
                minCohort, profiles, reveals, maxSumsPerModel, maxSumsPerDay, minAgeDays, countsAttested, maxEpsilon,
                measures);
    }

    /** Returns the same, letting all sums together tell no more of this device than an epsilon. */
    public Agreement withMaxEpsilon(double epsilon) {
        return new Agreement(
                minCohort, profiles, reveals, maxSumsPerModel, maxSumsPerDay, minPeerAgeDays, countsAttestedPeers,
                epsilon, measures);
    }

    /** Returns the same, with nothing measured on these pictures. */
    public Agreement withoutMeasuring() {
        return new Agreement(
                minCohort, profiles, reveals, maxSumsPerModel, maxSumsPerDay, minPeerAgeDays, countsAttestedPeers,
                maxEpsilon, false);
    }

    /** Throws CONFIG for a task that this device has not agreed to; plain sums never are. */
    public void check(TaskSpec task) {
        if (!Methods.has(task.method)) {
            throw refused(task, "uses method " + task.method + ", which this program has not");
        }
        if (task.measures() && !measures) {
            throw refused(task, "measures models on the pictures here, which are not to");
        }
        if (task.profile == null) {
            throw refused(task, "takes plain sums: the coordinator would see this phone's own update");
        }
        if (!profiles.contains(task.profile)) {
            throw refused(task, "hides this phone's update only from a coordinator that keeps to the rules");
        }
        if (!reveals.containsAll(task.reveals)) {
            throw refused(
                    task,
                    "would show the coordinator this phone's " + task.reveals + ", and its owner agreed to " + reveals);
        }
        int fewest = Methods.fewest(task, minCohort);
        int hidden = Math.min(task.minCohort, task.smallestSum - task.sources);
        if (hidden < fewest) {
            String why = fewest == minCohort ? "" : ", which it takes to be hidden as among " + minCohort + " that count alike";
            throw refused(
                    task,
                    "lets the coordinator see sums over " + hidden + " devices" + (task.sources > 0 ? " besides its sources" : "")
                            + ", less than " + fewest + why);
        }
    }

    private static MienException refused(TaskSpec task, String why) {
        return new MienException(
                ErrorCode.CONFIG, "task '" + task.name + "' " + why + "; this device stays out of it");
    }
}
