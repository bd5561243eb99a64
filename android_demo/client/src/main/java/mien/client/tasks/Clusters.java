package mien.client.tasks;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * Pseudo labels without labels: FINCH and C-FINCH over embeddings, and the distance that finds labelled people again.
 *
 * <p>The source is {@code mien/methods/clustering.py}. All is decided in double precision, ties by the lowest index. Clusters
 * are numbered by their first member.
 */
final class Clusters {
    /** Distances that a calibration tries: steps of 0.05 between unit vectors. */
    private static final int CALIBRATION_STEPS = 40;

    private static final double AS_GOOD = 1e-12;
    /** After so many numbers of two rows it is asked whether they can still be the nearest. */
    private static final int STRIDE = 32;

    /** The nearest other row of each, and how far it is. */
    private static final class Neighbours {
        final int[] index;
        final double[] distance;

        Neighbours(int[] index, double[] distance) {
            this.index = index;
            this.distance = distance;
        }
    }

    private final double[][] rows;
    private final boolean isCosine;
    /** Of the rows themselves, which no distance changes; null for one row, which has none. */
    private final Neighbours nearest;

    /** Takes embeddings (N, D); distances between them are 1 - cos where {@code isCosine}, and Euclidean if not. */
    Clusters(float[][] embeddings, boolean isCosine) {
        rows = new double[embeddings.length][];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = new double[embeddings[i].length];
            for (int d = 0; d < rows[i].length; d++) {
                rows[i][d] = embeddings[i][d];
            }
        }
        this.isCosine = isCosine;
        nearest = rows.length < 2 ? null : neighbours(rows);
    }

    /** Returns C-FINCH's labels (N,): neighbours are joined while nearer than a distance, so many times at most (0: all). */
    int[] within(double distance, int maxLevels) {
        List<int[]> levels = levels(distance, maxLevels);
        if (!levels.isEmpty()) {
            return levels.get(levels.size() - 1);
        }
        int[] alone = new int[rows.length];
        for (int i = 0; i < alone.length; i++) {
            alone[i] = i;
        }
        return alone;
    }

    /** Returns FINCH's labels (N,) at a level, 0 the finest and -1 the coarsest; one beyond the last means the last. */
    int[] at(int level) {
        List<int[]> levels = levels(Double.POSITIVE_INFINITY, 0);
        if (levels.isEmpty()) {
            levels.add(new int[rows.length]);
        }
        int chosen = Math.min(level, levels.size() - 1);
        if (chosen < -levels.size()) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "FINCH found " + levels.size() + " partitions here, there is no level " + level
                            + "; this phone stays out of the task");
        }
        return levels.get(chosen < 0 ? levels.size() + chosen : chosen);
    }

    /** Returns the distance at which {@link #within} finds labelled people again best, the middle one of several as good. */
    double calibrated(int[] labels, int maxLevels) {
        requireTwo(labels);
        double[] scores = new double[CALIBRATION_STEPS];
        double highest = 0;
        for (int i = 0; i < scores.length; i++) {
            scores[i] = pairwiseF(labels, within(tried(i, isCosine), maxLevels));
            highest = Math.max(highest, scores[i]);
        }
        List<Double> best = new ArrayList<>();
        for (int i = 0; i < scores.length; i++) {
            if (scores[i] >= highest - AS_GOOD) {
                best.add(tried(i, isCosine));
            }
        }
        return best.get(best.size() / 2);
    }

    /**
     * Returns the largest distance at which of all pairs of labelled pictures that {@link #within} joins a share
     * {@code purity} is of one person, people being taken in groups of two or more and of so many pictures.
     */
    static double pure(
            float[][] embeddings, int[] labels, double purity, int groupImages, boolean isCosine, int maxLevels) {
        requireTwo(labels);
        List<int[]> groups = groups(labels, groupImages);
        List<Clusters> clusters = new ArrayList<>();
        for (int[] group : groups) {
            float[][] part = new float[group.length][];
            for (int i = 0; i < group.length; i++) {
                part[i] = embeddings[group[i]];
            }
            clusters.add(new Clusters(part, isCosine));
        }
        for (int step = CALIBRATION_STEPS - 1; step >= 0; step--) {
            double distance = tried(step, isCosine);
            long right = 0;
            long joined = 0;
            for (int g = 0; g < groups.size(); g++) {
                int[] of = new int[groups.get(g).length];
                for (int i = 0; i < of.length; i++) {
                    of[i] = labels[groups.get(g)[i]];
                }
                Pairs pairs = new Pairs(of, clusters.get(g).within(distance, maxLevels));
                right += pairs.right;
                joined += pairs.joined;
            }
            if (joined > 0 && (double) right / joined >= purity) {
                return distance;
            }
        }
        throw new MienException(
                ErrorCode.CONFIG,
                "at no distance are " + purity + " of the pairs that C-FINCH joins among public people of one person; tell"
                        + " the operator to lower options.clustering.purity or to name a distance");
    }

    /** Returns the indices of each group of whole people, in the order of their labels, of two or more of them. */
    private static List<int[]> groups(int[] labels, int groupImages) {
        TreeMap<Integer, List<Integer>> people = new TreeMap<>();
        for (int i = 0; i < labels.length; i++) {
            people.computeIfAbsent(labels[i], label -> new ArrayList<>()).add(i);
        }
        List<int[]> groups = new ArrayList<>();
        List<Integer> all = new ArrayList<>();
        List<Integer> group = new ArrayList<>();
        int ofGroup = 0;
        for (List<Integer> images : people.values()) {
            all.addAll(images);
            group.addAll(images);
            ofGroup++;
            if (groupImages > 0 && ofGroup > 1 && group.size() >= groupImages) {
                groups.add(array(group));
                group.clear();
                ofGroup = 0;
            }
        }
        if (groups.isEmpty()) {
            groups.add(array(all));
        }
        return groups;
    }

    private static int[] array(List<Integer> values) {
        int[] found = new int[values.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = values.get(i);
        }
        return found;
    }

    private static double tried(int step, boolean isCosine) {
        double chord = step + 1 == CALIBRATION_STEPS ? 2 : (step + 1) * (2.0 / CALIBRATION_STEPS);
        return isCosine ? chord * chord / 2 : chord;
    }

    private static void requireTwo(int[] labels) {
        Map<Long, Long> counts = new HashMap<>();
        boolean isTwice = false;
        for (int label : labels) {
            isTwice |= counts.merge((long) label, 1L, Long::sum) > 1;
        }
        if (counts.size() < 2 || !isTwice) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "a distance is measured on two public people or more, one of them with two pictures or more, and this"
                            + " model has fewer; tell the operator");
        }
    }

    /** Numbers of pairs of pictures: of one person and joined, of one person, joined. */
    private static final class Pairs {
        final long right;
        final long ofOne;
        final long joined;

        Pairs(int[] truth, int[] clusters) {
            Map<Long, Long> shared = new HashMap<>();
            Map<Long, Long> people = new HashMap<>();
            Map<Long, Long> found = new HashMap<>();
            for (int i = 0; i < truth.length; i++) {
                shared.merge((long) truth[i] << 32 | clusters[i], 1L, Long::sum);
                people.merge((long) truth[i], 1L, Long::sum);
                found.merge((long) clusters[i], 1L, Long::sum);
            }
            right = pairs(shared);
            ofOne = pairs(people);
            joined = pairs(found);
        }
    }

    /** Returns the harmonic mean of precision and recall over pairs of pictures that are joined, or of one person. */
    private static double pairwiseF(int[] truth, int[] clusters) {
        Pairs pairs = new Pairs(truth, clusters);
        double precision = pairs.joined == 0 ? 1 : (double) pairs.right / pairs.joined;
        double recall = pairs.ofOne == 0 ? 1 : (double) pairs.right / pairs.ofOne;
        double total = precision + recall;
        return total == 0 ? 0 : 2 * precision * recall / total;
    }

    private static long pairs(Map<Long, Long> counts) {
        long pairs = 0;
        for (long count : counts.values()) {
            pairs += count * (count - 1) / 2;
        }
        return pairs;
    }

    /** Returns the partitions that joining linked neighbours gives, finest first, at most so many (0: all that there are). */
    private List<int[]> levels(double distance, int most) {
        List<int[]> levels = new ArrayList<>();
        double[][] sums = rows;
        int[] sizes = new int[rows.length];
        Arrays.fill(sizes, 1);
        while (sizes.length > 1 && (most == 0 || levels.size() < most)) {
            Neighbours found = sums == rows ? nearest : neighbours(centroids(sums, sizes));
            int[] joined = components(found, distance);
            if (joined == null) {
                break;
            }
            if (levels.isEmpty()) {
                levels.add(joined);
            } else {
                int[] finer = levels.get(levels.size() - 1);
                int[] coarser = new int[finer.length];
                for (int i = 0; i < finer.length; i++) {
                    coarser[i] = joined[finer[i]];
                }
                levels.add(coarser);
            }
            int count = RoundFaces.count(joined);
            double[][] next = new double[count][sums[0].length];
            int[] members = new int[count];
            for (int i = 0; i < joined.length; i++) {
                for (int d = 0; d < sums[i].length; d++) {
                    next[joined[i]][d] += sums[i][d];
                }
                members[joined[i]] += sizes[i];
            }
            sums = next;
            sizes = members;
        }
        return levels;
    }

    private static double[][] centroids(double[][] sums, int[] sizes) {
        double[][] centroids = new double[sums.length][sums[0].length];
        for (int i = 0; i < sums.length; i++) {
            for (int d = 0; d < sums[i].length; d++) {
                centroids[i][d] = sums[i][d] / sizes[i];
            }
        }
        return centroids;
    }

    /** Returns which nodes hang together by links shorter than a distance, null where none is shorter. */
    private static int[] components(Neighbours found, double distance) {
        int[] parent = new int[found.index.length];
        for (int i = 0; i < parent.length; i++) {
            parent[i] = i;
        }
        boolean isLinked = false;
        for (int i = 0; i < parent.length; i++) {
            if (found.distance[i] < distance) {
                isLinked = true;
                int one = root(parent, i);
                int other = root(parent, found.index[i]);
                parent[Math.max(one, other)] = Math.min(one, other);
            }
        }
        if (!isLinked) {
            return null;
        }
        // The smaller root always wins, so that roots ascend with their components' first members.
        int[] numbers = new int[parent.length];
        int next = 0;
        for (int i = 0; i < parent.length; i++) {
            int root = root(parent, i);
            numbers[i] = root == i ? next++ : numbers[root];
        }
        return numbers;
    }

    private static int root(int[] parent, int node) {
        int at = node;
        while (parent[at] != at) {
            parent[at] = parent[parent[at]];
            at = parent[at];
        }
        return at;
    }

    private Neighbours neighbours(double[][] of) {
        double[][] unit = unit(of);
        int[] index = new int[unit.length];
        double[] squared = new double[unit.length];
        Arrays.fill(squared, Double.POSITIVE_INFINITY);
        for (int i = 0; i < unit.length; i++) {
            for (int j = i + 1; j < unit.length; j++) {
                double gap = gap(unit[i], unit[j], Math.max(squared[i], squared[j]));
                if (gap < squared[i]) {
                    squared[i] = gap;
                    index[i] = j;
                }
                if (gap < squared[j]) {
                    squared[j] = gap;
                    index[j] = i;
                }
            }
        }
        for (int i = 0; i < squared.length; i++) {
            squared[i] = isCosine ? squared[i] / 2 : Math.sqrt(squared[i]);
        }
        return new Neighbours(index, squared);
    }

    /** Returns the squared distance of two rows, or some number that is no smaller than {@code most}, where it is not. */
    private static double gap(double[] one, double[] other, double most) {
        double sum = 0;
        for (int from = 0; from < one.length && sum < most; from += STRIDE) {
            int to = Math.min(from + STRIDE, one.length);
            for (int d = from; d < to; d++) {
                double difference = one[d] - other[d];
                sum += difference * difference;
            }
        }
        return sum;
    }

    private static double[][] unit(double[][] of) {
        double[][] unit = new double[of.length][];
        for (int i = 0; i < of.length; i++) {
            double squares = 0;
            for (double value : of[i]) {
                squares += value * value;
            }
            if (!(squares > 0 && squares <= Double.MAX_VALUE)) {
                throw new MienException(
                        ErrorCode.NON_FINITE,
                        "an embedding that was to be clustered, or a mean of several, has no direction; leave the round");
            }
            double length = Math.sqrt(squares);
            unit[i] = new double[of[i].length];
            for (int d = 0; d < unit[i].length; d++) {
                unit[i][d] = of[i][d] / length;
            }
        }
        return unit;
    }
}
