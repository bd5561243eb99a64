package mien.client.tasks;

import java.util.Collections;
import java.util.Set;
import java.util.TreeSet;

/** What leaves the phone in a round, in numbers, for an app to say in its user's language before it leaves. */
public final class Disclosure {
    /** Phones in an opened sum of moments, and how often in 100 its members were told from others (docs/leakage.md). */
    private static final int[][] TOLD_APART = {{4, 99}, {16, 99}, {64, 99}, {256, 93}, {1024, 77}, {4096, 65}};

    public final String task;
    /** Numbers that are sent, and their bytes under masks. */
    public final int numNumbers;

    public final long numBytes;
    /** Whether pictures change the model; if not, it is moments of what the model makes of them that leave, or scores. */
    public final boolean trains;
    /** Whether it is how good a model is that leaves: which share of comparisons gave which score. */
    public final boolean measures;

    /** Of the model, that training changed; 0 where nothing is trained. */
    public final int numParameters;
    public final int numImages;
    /** Whose images they are. */
    public final int numPeople;
    public final int weight;
    /** The fewest devices whose sum is seen. */
    public final int fewest;
    /**
     * As how few devices, of which all count alike, these hide this one whatever the coordinator tells: fewer than
     * {@link #fewest} where that says how much each person counts.
     */
    public final int worth;
    /**
     * How many devices of the sum at least have labelled faces. Who runs them knows what they sent and can take it out of the
     * sum: the others hide among as many fewer.
     */
    public final int sources;
    /**
     * What the coordinator is shown besides. "class_moment": each person's template, multiplied with itself, is in a sum
     * that the coordinator opens; it tells nobody's template, but whether somebody whose face is known took part.
     */
    public final Set<String> reveals;
    /**
     * Of a task that opens sums of moments in clear: of one person who was in such a sum over so many phones and one who was
     * not, a server with other photos of both told which was which so often in 100 (guessing: 50), in trials. 0 of others.
     */
    public final int toldApartPhones;

    public final int toldApartPercent;
    /** Who adds noise for differential privacy: "none", "central_gaussian" (the coordinator), "skellam" (each phone). */
    public final String noise;
    /** What that promises over all tasks together; 0 without noise. */
    public final double epsilon;

    public final double delta;

    /** Says of a task what leaves this phone for it, with so many pictures of so many people. */
    public Disclosure(TaskSpec task, ContributionLayout layout, int numImages, int numPeople) {
        this.task = task.name;
        this.numImages = numImages;
        this.numPeople = numPeople;
        numNumbers = layout.size;
        trains = task.trains();
        measures = task.measures();
        numParameters = layout.numParameters;
        numBytes = (long) (layout.updateSize() + layout.numMetrics() + 4) * task.numbers().ringBits / 8;
        weight = trains ? Math.min(numImages, task.maxWeight) : 1;
        fewest = task.smallestSum;
        worth = fewest / Methods.phonesAsOne(task);
        sources = task.sources;
        reveals = Collections.unmodifiableSet(new TreeSet<>(task.reveals));
        int[] measured = reveals.contains(Agreement.CLASS_MOMENT) ? toldApart(worth) : new int[2];
        toldApartPhones = measured[0];
        toldApartPercent = measured[1];
        noise = task.dp.name;
        epsilon = task.dp.epsilon;
        delta = task.dp.delta;
    }

    /** Returns the largest sum that was measured of no more than so many phones, which tells more, and the rate. */
    static int[] toldApart(int fewest) {
        int[] found = TOLD_APART[0];
        for (int[] each : TOLD_APART) {
            if (each[0] <= fewest) {
                found = each;
            }
        }
        return found;
    }
}
