package mien.app.training;

import mien.app.R;
import mien.client.rounds.Event;

/** What a phone does in a round, in the owner's language, and which of a round's steps that is. */
final class Stages {
    /** Fetching, computing, agreeing on masks, sending, waiting for the sum. */
    static final int STEPS = 5;

    private Stages() {}

    /** Returns the step that begins, from 1 on; 0 where what happens belongs to none. */
    static int step(Event event) {
        switch (event) {
            case FETCHING:
                return 1;
            case TRAINING:
            case SUMMING:
            case MEASURING:
                return 2;
            case TRAINED:
            case SUMMED:
            case MEASURED:
            case REPORTED:
            case KEYS:
            case SHARES:
                return 3;
            case UPLOAD:
                return 4;
            case UPLOADED:
            case CONSISTENCY:
            case UNMASK:
                return STEPS;
            default:
                return 0;
        }
    }

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
