package mien.app.training;

import mien.app.R;

/** What a phone does in a round, by the words of the client's listener. */
final class Stages {
    private Stages() {}

    static int sentence(String word) {
        switch (word) {
            case "waiting":
                return R.string.stage_waiting;
            case "fetching":
                return R.string.stage_fetching;
            case "training":
                return R.string.stage_training;
            case "summing":
                return R.string.stage_summing;
            case "uncosigned":
                return R.string.stage_uncosigned;
            case "summed":
            case "trained":
            case "reported":
                return R.string.stage_trained;
            case "keys":
            case "shares":
            case "consistency":
                return R.string.stage_keys;
            case "upload":
            case "uploading":
                return R.string.stage_uploading;
            case "uploaded":
            case "unmask":
                return R.string.stage_uploaded;
            case "resumed":
                return R.string.stage_resumed;
            default:
                return R.string.stage_connecting;
        }
    }
}
