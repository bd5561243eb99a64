package mien.client.fl;

import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.Model;
import mien.client.model.ModelSpec;
import mien.client.train.GraphRuntime;

/** Verifies and identifies aligned crops against the gallery, at the threshold that came with the model. */
public final class Recogniser {
    private final Model model;
    private final GraphRuntime runtime;
    private final Gallery gallery;

    public Recogniser(Model model, GraphRuntime runtime, Gallery gallery) {
        this.model = model;
        this.runtime = runtime;
        this.gallery = gallery;
    }

    /** Returns templates of crops, for enrolment. */
    public float[][] templates(byte[][] crops) {
        return runtime.embed(model.theta, crops);
    }

    /** Returns whether a crop shows one person: theirs, or unknown. */
    public Decision verify(int person, byte[] crop) {
        return best(crop, person);
    }

    /** Returns who of the gallery a crop shows, if anybody. */
    public Decision identify(byte[] crop) {
        return best(crop, 0);
    }

    private Decision best(byte[] crop, int only) {
        double threshold = threshold();
        float[] probe = runtime.embed(model.theta, new byte[][] {crop})[0];
        Gallery.Person best = null;
        for (Gallery.Person person : gallery.people()) {
            if (only != 0 && person.id != only) {
                continue;
            }
            if (!person.modelId.equals(model.modelId)) {
                throw new MienException(
                        ErrorCode.MODEL_MISMATCH, "the gallery's templates are of another model; update before verifying");
            }
            double score = score(person, probe);
            if (score >= threshold) {
                best = person;
                threshold = Math.max(score, Math.nextUp(threshold));
            }
        }
        return new Decision(best);
    }

    /** Returns the highest cosine to any template. */
    private static double score(Gallery.Person person, float[] probe) {
        double best = -1;
        for (float[] template : person.templates) {
            double cosine = 0;
            for (int d = 0; d < probe.length; d++) {
                cosine += (double) template[d] * probe[d];
            }
            best = Math.max(best, cosine);
        }
        return best;
    }

    /** Returns the strictest threshold that the model brings: the one with the lowest false match rate. */
    private double threshold() {
        ModelSpec.Threshold strictest = null;
        for (ModelSpec.Threshold each : model.spec.thresholds) {
            strictest = strictest == null || each.fmr < strictest.fmr ? each : strictest;
        }
        if (strictest == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "the model has no threshold yet, so nobody can be verified; ask the operator");
        }
        return strictest.value;
    }
}
