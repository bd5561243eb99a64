package mien.client.people;

import java.util.ArrayList;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.ModelSpec.Threshold;

/**
 * The threshold that decides, of those that came with the model. In a search a stranger is compared with everybody, so it
 * follows from how many are enrolled (decision record 0065).
 */
public final class Operating {
    /** The false match rate of one comparison to stay under. */
    static final double MAX_FMR = 1e-3;
    /** The share of looks in which a search may name a stranger. */
    static final double MAX_FPIR = 1e-2;

    /** The cosine from which on two faces are one person's. */
    public final double value;
    /** A bound on how often a search names a stranger, 0 to 1; not a number where none is meant. */
    public final double fpir;

    private Operating(double value, double fpir) {
        this.value = value;
        this.fpir = fpir;
    }

    /** Returns whether more are enrolled than the model can tell from strangers. */
    public boolean isTooMany() {
        return fpir > MAX_FPIR;
    }

    /** Returns the model's own threshold with the highest false match rate that is low enough; throws CONFIG without one. */
    static Operating of(List<Threshold> thresholds, String modelId) {
        Threshold best = highest(measuredOn(thresholds, modelId), MAX_FMR);
        if (best == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "the model has no threshold yet, so nobody can be verified; ask the operator");
        }
        return new Operating(best.value, Double.NaN);
    }

    /**
     * Returns the threshold at which a stranger is named as one of so many people in at most {@link #MAX_FPIR} of looks: the
     * model's for that rate by their number, its strictest where it has none so strict. Throws CONFIG as {@link #of}.
     */
    static Operating among(List<Threshold> thresholds, String modelId, int numEnrolled) {
        of(thresholds, modelId);
        List<Threshold> own = measuredOn(thresholds, modelId);
        Threshold chosen = highest(own, Math.min(MAX_FMR, MAX_FPIR / numEnrolled));
        if (chosen == null) {
            chosen = own.get(0);
            for (Threshold each : own) {
                chosen = each.fmr < chosen.fmr ? each : chosen;
            }
        }
        // Pairs of pictures give lower thresholds than templates do: none that is for a higher rate may be above.
        double value = chosen.value;
        for (Threshold each : own) {
            value = each.fmr >= chosen.fmr ? Math.max(value, each.value) : value;
        }
        return new Operating(value, Math.min(1, chosen.fmr * numEnrolled));
    }

    private static List<Threshold> measuredOn(List<Threshold> thresholds, String modelId) {
        List<Threshold> own = new ArrayList<>();
        for (Threshold each : thresholds) {
            if (each.modelId.equals(modelId)) {
                own.add(each);
            }
        }
        return own;
    }

    /** Returns the one of the highest rate up to a limit, of equal ones the lowest; null for none. */
    private static Threshold highest(List<Threshold> own, double limit) {
        Threshold best = null;
        for (Threshold each : own) {
            boolean isHigher = best == null || each.fmr > best.fmr || (each.fmr == best.fmr && each.value < best.value);
            best = each.fmr <= limit && isHigher ? each : best;
        }
        return best;
    }
}
