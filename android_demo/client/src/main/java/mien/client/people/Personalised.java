package mien.client.people;

import java.util.Collections;
import java.util.Map;

/** What personalising came to: thresholds by person, and whether the personal model is in use from now on. */
public final class Personalised {
    public final Map<Integer, PersonalThreshold> thresholds;
    /** By how many more standard deviations of strangers' scores left-out pictures lie above the threshold. */
    public final double gain;

    public final double gainError;
    public final boolean isUsed;

    Personalised(Map<Integer, PersonalThreshold> thresholds, double gain, double gainError, boolean isUsed) {
        this.thresholds = Collections.unmodifiableMap(thresholds);
        this.gain = gain;
        this.gainError = gainError;
        this.isUsed = isUsed;
    }
}
