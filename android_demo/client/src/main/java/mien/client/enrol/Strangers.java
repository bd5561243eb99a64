package mien.client.enrol;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Which pictures of an enrolment do not belong with the rest. */
final class Strangers {
    private Strangers() {}

    /**
     * Returns the rows that belong together, in order. Each that stays matches at least half of the others that stay, one
     * by one: a mean over pictures of two people resembles both. The worst goes first, one at a time, so that no picture of
     * the person falls with a stranger's. Two pictures that differ cannot tell which is right: both stay.
     */
    static int[] without(float[][] features, double threshold) {
        List<Integer> left = new ArrayList<>();
        for (int i = 0; i < features.length; i++) {
            left.add(i);
        }
        while (left.size() > 2) {
            Integer worst = null;
            double lowest = Double.POSITIVE_INFINITY;
            for (Integer each : left) {
                double score = middleScore(features, left, each);
                if (score < lowest) {
                    lowest = score;
                    worst = each;
                }
            }
            if (worst == null || lowest >= threshold) {
                break;
            }
            left.remove(worst);
        }
        return array(left);
    }

    /**
     * Returns the rows, of those that are not kept, that match one of them, where they are at least half as many as the kept
     * ones: a second person. Else none.
     */
    static int[] secondGroup(float[][] features, int[] kept, double threshold) {
        List<Integer> strangers = new ArrayList<>();
        for (int i = 0; i < features.length; i++) {
            if (Arrays.binarySearch(kept, i) < 0) {
                strangers.add(i);
            }
        }
        List<Integer> largest = new ArrayList<>();
        for (int one : strangers) {
            List<Integer> group = new ArrayList<>();
            for (int other : strangers) {
                if (other == one || product(features[one], features[other]) >= threshold) {
                    group.add(other);
                }
            }
            if (group.size() > largest.size()) {
                largest = group;
            }
        }
        boolean isPerson = largest.size() >= 2 && 2 * largest.size() >= kept.length;
        return isPerson ? array(largest) : new int[0];
    }

    /** Returns the score that half of the others, rounded up, reach with a row. */
    private static double middleScore(float[][] features, List<Integer> left, int row) {
        double[] scores = new double[left.size() - 1];
        int count = 0;
        for (int other : left) {
            if (other != row) {
                scores[count++] = product(features[row], features[other]);
            }
        }
        Arrays.sort(scores);
        return scores[count - left.size() / 2];
    }

    private static double product(float[] one, float[] other) {
        double sum = 0;
        for (int d = 0; d < one.length; d++) {
            sum += (double) one[d] * other[d];
        }
        return sum;
    }

    private static int[] array(List<Integer> rows) {
        int[] array = new int[rows.size()];
        for (int i = 0; i < array.length; i++) {
            array[i] = rows.get(i);
        }
        return array;
    }
}
