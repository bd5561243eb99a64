package mien.app.training;

import mien.app.R;
import mien.client.rounds.Event;

/** What a phone does in a round, in the owner's language. */
final class Stages {
    private Stages() {}

    static int sentence(Event event) {
        switch (event) {
            case FETCHING:
                return R.string.stage_fetching;
            case TRAINING:
                return R.string.stage_training;
            case SUMMING:
                return R.string.stage_summing;
            case MEASURING:
                return R.string.stage_measuring;
            case UNCOSIGNED:
                return R.string.stage_uncosigned;
            case SUMMED:
            case MEASURED:
            case TRAINED:
            case KEPT:
            case REPORTED:
                return R.string.stage_trained;
            case KEYS:
            case SHARES:
            case CONSISTENCY:
                return R.string.stage_keys;
            case UPLOAD:
                return R.string.stage_uploading;
            case UPLOADED:
            case UNMASK:
                return R.string.stage_uploaded;
            case RESUMED:
                return R.string.stage_resumed;
            default:
                return R.string.stage_connecting;
        }
    }
}
