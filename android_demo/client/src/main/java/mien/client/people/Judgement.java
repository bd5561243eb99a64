package mien.client.people;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.Indices;
import mien.client.train.Generator;

/**
 * A personal model with a threshold for each person, and whether it is better than the released one: judged on pictures and
 * public people that were left out of it.
 *
 * <p>The source is {@code mien/methods/personal_branch.py}.
 */
final class Judgement {
    static final int MIN_IMAGES = 3;
    static final int MIN_PUBLIC_PEOPLE = 20;
    private static final int MOST_TURNS = 5;
    private static final int DRAWS = 200;
    private static final double QUANTILE = 0.95;
    /** Of scores: below this all are the same but for rounding. */
    private static final double LEAST_SPREAD = 1e-6;

    final Branch branch;
    final PersonalThreshold[] thresholds;
    /** By how many more non-mated standard deviations own pictures lie above the threshold, on average. */
    final double gain;

    final double gainError;

    private Judgement(Branch branch, PersonalThreshold[] thresholds, double gain, double gainError) {
        this.branch = branch;
        this.thresholds = thresholds;
        this.gain = gain;
        this.gainError = gainError;
    }

    /** Returns whether it misses no more of the pictures that were left out, and gains more than chance explains. */
    boolean isBetter() {
        int missed = 0;
        for (PersonalThreshold each : thresholds) {
            missed += each.numMissed - each.numMissedReleased;
        }
        return missed <= 0 && gain > gainError;
    }

    /** Embeddings of public people, and whose each is. */
    private static final class Faces {
        final float[][] unit;
        final int[] labels;

        Faces(float[][] unit, int[] labels) {
            this.unit = unit;
            this.labels = labels;
        }

        Faces of(boolean[] people, boolean wanted) {
            int[] places = Indices.where(labels.length, i -> people[labels[i]] == wanted);
            float[][] some = new float[places.length][];
            int[] whose = new int[places.length];
            for (int i = 0; i < places.length; i++) {
                some[i] = unit[places[i]];
                whose[i] = labels[places[i]];
            }
            return new Faces(some, whose);
        }
    }

    /** One person under both models: templates, thresholds and the spread of their non-mated scores. */
    private static final class Carried {
        final Branch branch;
        final float[] template;
        final double value;
        final double spread;
        final double releasedValue;
        final double releasedSpread;
        final int numFalse;
        final int numPublic;

        Carried(Branch branch, float[][] own, Faces measure, double releasedThreshold, Generator random) {
            this.branch = branch;
            template = template(own);
            float[] released = scores(measure.unit, template);
            float[] personal = scores(branch.apply(measure.unit), branch.apply(new float[][] {template})[0]);
            int[] people = Arrays.stream(measure.labels).distinct().sorted().toArray();
            int[] person = new int[measure.labels.length];
            for (int i = 0; i < person.length; i++) {
                person[i] = Arrays.binarySearch(people, measure.labels[i]);
            }
            int[] once = new int[person.length];
            Arrays.fill(once, 1);
            spread = moments(personal, once)[1];
            releasedSpread = moments(released, once)[1];
            if (!(Math.min(spread, releasedSpread) > LEAST_SPREAD)) {
                throw new MienException(
                        ErrorCode.CONFIG, "the public faces all look alike to this model; ask the operator for other ones");
            }
            value = carriedOver(released, personal, person, people.length, releasedThreshold, random);
            releasedValue = releasedThreshold;
            boolean[] isFalse = new boolean[people.length];
            for (int i = 0; i < person.length; i++) {
                isFalse[person[i]] |= personal[i] >= value;
            }
            numFalse = Indices.where(isFalse.length, i -> isFalse[i]).length;
            numPublic = people.length;
        }
    }

    /** What became of one picture that was left out. */
    private static final class Result {
        final double gain;
        final boolean isMissed;
        final boolean isMissedReleased;

        Result(Carried at, float[] unit) {
            double released = dot(unit, at.template);
            float[][] personal = at.branch.apply(new float[][] {unit, at.template});
            double score = dot(personal[0], personal[1]);
            gain = (score - at.value) / at.spread - (released - at.releasedValue) / at.releasedSpread;
            isMissed = score < at.value;
            isMissedReleased = released < at.releasedValue;
        }
    }

    /**
     * Returns the branch fitted to all own embeddings of length 1. Half of the public people teach it, the others measure its
     * thresholds; whether it is better is judged with the halves changed over. Throws CONFIG for too few pictures or people.
     */
    static Judgement of(
            float[][] own, int[] labels, float[][] everybodyElse, int[] theirLabels, double releasedThreshold, long seed) {
        checkEnough(labels, theirLabels);
        Generator random = new Generator(seed);
        int[] people = random.permutation(Arrays.stream(theirLabels).distinct().sorted().toArray());
        boolean[] isFirst = new boolean[Arrays.stream(theirLabels).max().getAsInt() + 1];
        for (int i = 0; i < people.length / 2; i++) {
            isFirst[people[i]] = true;
        }
        Faces all = new Faces(everybodyElse, theirLabels);
        Faces first = all.of(isFirst, true);
        Faces second = all.of(isFirst, false);
        Faces mine = new Faces(own, labels);
        int numPeople = Arrays.stream(labels).max().getAsInt() + 1;
        int[] counts = new int[numPeople];
        int[] rank = new int[labels.length];
        for (int i = 0; i < labels.length; i++) {
            rank[i] = counts[labels[i]]++;
        }
        int turns = Math.min(MOST_TURNS, Arrays.stream(counts).min().getAsInt());
        List<List<Result>> results = new ArrayList<>();
        for (int k = 0; k < numPeople; k++) {
            results.add(new ArrayList<>());
        }
        for (int turn = 0; turn < turns; turn++) {
            Faces kept = some(mine, rank, turns, turn, false);
            Faces out = some(mine, rank, turns, turn, true);
            Branch branch = Branch.fit(kept.unit, kept.labels, second.unit);
            for (int k = 0; k < numPeople; k++) {
                Carried at = new Carried(branch, person(kept, k), first, releasedThreshold, random);
                for (float[] unit : person(out, k)) {
                    results.get(k).add(new Result(at, unit));
                }
            }
        }
        Branch branch = Branch.fit(own, labels, first.unit);
        PersonalThreshold[] thresholds = new PersonalThreshold[numPeople];
        double sum = 0;
        int count = 0;
        for (int k = 0; k < numPeople; k++) {
            Carried at = new Carried(branch, person(mine, k), second, releasedThreshold, random);
            int missed = 0;
            int missedReleased = 0;
            for (Result each : results.get(k)) {
                missed += each.isMissed ? 1 : 0;
                missedReleased += each.isMissedReleased ? 1 : 0;
                sum += each.gain;
                count++;
            }
            thresholds[k] =
                    new PersonalThreshold(
                            at.value, at.numFalse, at.numPublic, missed, missedReleased, results.get(k).size());
        }
        double gain = sum / count;
        double squares = 0;
        for (List<Result> each : results) {
            for (Result result : each) {
                squares += (result.gain - gain) * (result.gain - gain);
            }
        }
        return new Judgement(branch, thresholds, gain, Math.sqrt(squares / (count - 1)) / Math.sqrt(count));
    }

    private static void checkEnough(int[] labels, int[] theirLabels) {
        int[] counts = new int[Arrays.stream(labels).max().getAsInt() + 1];
        for (int label : labels) {
            counts[label]++;
        }
        if (Arrays.stream(counts).min().getAsInt() < MIN_IMAGES) {
            throw new MienException(
                    ErrorCode.CONFIG, "a personal model needs " + MIN_IMAGES + " pictures of each person; add more");
        }
        long people = Arrays.stream(theirLabels).distinct().count();
        if (people < MIN_PUBLIC_PEOPLE) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "a personal model needs public faces of " + MIN_PUBLIC_PEOPLE + " people, the released model brings "
                            + people + "; ask the operator to release it with more");
        }
    }

    /** Returns the pictures that are left out in a turn, or the others. */
    private static Faces some(Faces all, int[] rank, int turns, int turn, boolean isOut) {
        int[] places = Indices.where(rank.length, i -> rank[i] % turns == turn == isOut);
        float[][] unit = new float[places.length][];
        int[] labels = new int[places.length];
        for (int i = 0; i < places.length; i++) {
            unit[i] = all.unit[places[i]];
            labels[i] = all.labels[places[i]];
        }
        return new Faces(unit, labels);
    }

    private static float[][] person(Faces all, int label) {
        int[] places = Indices.where(all.labels.length, i -> all.labels[i] == label);
        float[][] own = new float[places.length][];
        for (int i = 0; i < places.length; i++) {
            own[i] = all.unit[places[i]];
        }
        return own;
    }

    /** Returns the mean of one person's embeddings, at length 1. */
    private static float[] template(float[][] own) {
        double[] mean = new double[own[0].length];
        for (float[] each : own) {
            for (int d = 0; d < mean.length; d++) {
                mean[d] += (double) each[d] / own.length;
            }
        }
        double squares = 0;
        for (double value : mean) {
            squares += value * value;
        }
        float[] template = new float[mean.length];
        for (int d = 0; d < mean.length; d++) {
            template[d] = (float) (mean[d] / Math.sqrt(squares));
        }
        return template;
    }

    private static float[] scores(float[][] unit, float[] template) {
        float[] scores = new float[unit.length];
        for (int i = 0; i < scores.length; i++) {
            scores[i] = (float) dot(unit[i], template);
        }
        return scores;
    }

    private static double dot(float[] one, float[] other) {
        double sum = 0;
        for (int d = 0; d < one.length; d++) {
            sum += (double) one[d] * other[d];
        }
        return sum;
    }

    /** Returns the threshold that lies among a person's non-mated scores where the released one lies among theirs. */
    private static double carriedOver(
            float[] released, float[] personal, int[] person, int numPeople, double threshold, Generator random) {
        double[] draws = new double[DRAWS];
        for (int draw = 0; draw < DRAWS; draw++) {
            int[] times = new int[numPeople];
            for (int i = 0; i < numPeople; i++) {
                times[random.below(numPeople - 1)]++;
            }
            int[] weights = new int[person.length];
            for (int i = 0; i < weights.length; i++) {
                weights[i] = times[person[i]];
            }
            double[] before = moments(released, weights);
            double[] after = moments(personal, weights);
            draws[draw] =
                    after[0] + (threshold - before[0]) / Math.max(LEAST_SPREAD, before[1]) * Math.max(LEAST_SPREAD, after[1]);
        }
        Arrays.sort(draws);
        double at = QUANTILE * (DRAWS - 1);
        int below = (int) at;
        double quantile = draws[below] + (draws[below + 1] - draws[below]) * (at - below);
        float highest = Float.NEGATIVE_INFINITY;
        for (float score : personal) {
            highest = Math.max(highest, score);
        }
        // Fewer than one false match is expected at a usual rate: none of the public faces may pass.
        return Math.min(1, Math.max(quantile, Math.nextAfter(highest, 2.0)));
    }

    /** Returns the weighted mean of scores, and their spread. */
    private static double[] moments(float[] scores, int[] weights) {
        double sum = 0;
        long total = 0;
        for (int i = 0; i < scores.length; i++) {
            sum += (double) weights[i] * scores[i];
            total += weights[i];
        }
        double mean = sum / total;
        double squares = 0;
        for (int i = 0; i < scores.length; i++) {
            squares += weights[i] * (scores[i] - mean) * (scores[i] - mean);
        }
        return new double[] {mean, Math.sqrt(squares / total)};
    }
}
