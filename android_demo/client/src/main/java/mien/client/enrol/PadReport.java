package mien.client.enrol;

import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;
import mien.client.ErrorCode;
import mien.client.MienException;

/** What a check was measured to do at one threshold, as ISO/IEC 30107-3 reports it: counts for each species of attack. */
public final class PadReport {
    /** So many errors in so many presentations. */
    public static final class ErrorCount {
        public final int numErrors;
        public final int numPresentations;

        /** Counts errors among presentations; throws CONFIG for more errors than presentations. */
        public ErrorCount(int numErrors, int numPresentations) {
            if (numErrors < 0 || numPresentations < 1 || numErrors > numPresentations) {
                throw new MienException(
                        ErrorCode.CONFIG,
                        numErrors + " errors in " + numPresentations + " presentations cannot be; measure again");
            }
            this.numErrors = numErrors;
            this.numPresentations = numPresentations;
        }
    }

    public final String detector;
    public final double threshold;
    /** Attacks that passed, by species (print, replay, mask ...). */
    public final Map<String, ErrorCount> attacks;
    /** Living faces that did not pass. */
    public final ErrorCount bonaFide;

    public final String dataset;
    public final String date;

    /** Holds what a laboratory found of a check against presentation attacks. */
    public PadReport(
            String detector,
            double threshold,
            Map<String, ErrorCount> attacks,
            ErrorCount bonaFide,
            String dataset,
            String date) {
        if (attacks.isEmpty() || detector.isEmpty() || dataset.isEmpty() || date.isEmpty() || Double.isNaN(threshold)) {
            throw new MienException(
                    ErrorCode.CONFIG, "a PAD report needs the detector, the data, the date and one species of attack");
        }
        this.detector = detector;
        this.threshold = threshold;
        this.attacks = Collections.unmodifiableMap(new TreeMap<>(attacks));
        this.bonaFide = bonaFide;
        this.dataset = dataset;
        this.date = date;
    }
}
