package mien.client.tasks;

/** What leaves the phone in a round, in numbers, for an app to say in its user's language before it leaves. */
public final class Disclosure {
    public final String task;
    /** Numbers that are sent, and their bytes under masks. */
    public final int numNumbers;

    public final long numBytes;
    public final int numParameters;
    public final int numImages;
    /** Whose images they are. */
    public final int numPeople;
    public final int weight;
    /** The fewest devices whose sum is seen. */
    public final int fewest;
    /** Who adds noise for differential privacy: "none", "central_gaussian" (the coordinator), "skellam" (each phone). */
    public final String noise;
    /** What that promises over all tasks together; 0 without noise. */
    public final double epsilon;

    public final double delta;

    public Disclosure(TaskSpec task, ContributionLayout layout, int numImages, int numPeople) {
        this.task = task.name;
        this.numImages = numImages;
        this.numPeople = numPeople;
        numNumbers = layout.size;
        numParameters = layout.updateSize();
        numBytes = (long) (layout.updateSize() + layout.numMetrics() + 4) * task.numbers().ringBits / 8;
        weight = Math.min(numImages, task.maxWeight);
        fewest = task.smallestSum;
        noise = task.dp.name;
        epsilon = task.dp.epsilon;
        delta = task.dp.delta;
    }
}
