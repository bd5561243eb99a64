package mien.client.enrol;

import java.util.ArrayList;
import java.util.List;

/** Which pictures of an enrolment do not belong with the rest. */
final class Strangers {
    private Strangers() {}

    /**
     * Returns the rows that belong together, in order. The worst goes first, one at a time, against the mean of all that
     * are left: a stranger pulls the mean less and less, so that no picture of the person falls with them. Two pictures
     * that differ cannot tell which is right: both stay.
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
                double score = scoreAgainstRest(features, left, each);
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
        int[] rows = new int[left.size()];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = left.get(i);
        }
        return rows;
    }

    /** Returns the cosine of a row to the mean of the others. */
    private static double scoreAgainstRest(float[][] features, List<Integer> left, int row) {
        double product = 0;
        double squares = 0;
        for (int d = 0; d < features[row].length; d++) {
            double rest = 0;
            for (int other : left) {
                rest += other == row ? 0 : features[other][d];
            }
            product += features[row][d] * rest;
            squares += rest * rest;
        }
        return product / Math.sqrt(squares);
    }
}
