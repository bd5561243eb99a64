package mien.client.tasks;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.util.Arrays;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;

/**
 * This device's weights in the candidates of federated validation, which follow from the task, what became of all weights
 * and a secret of its own: no server chooses or foresees them.
 *
 * <p>The source is {@code mien/methods/weightings.py} and {@code own_weighting} of {@code mien/methods/pfm_fv.py}.
 */
final class Weightings {
    /** No draw is larger: the largest is 64 ln 2. */
    private static final double MOST_DRAWN = 64;

    /** With fewer, sums hold more of an average device's update than of all others'. */
    private static final int DEVICES_PER_WEIGHTING = 2;

    /** What draws follow from beside the task, byte by byte: a device keeps the first that it was given. */
    private static final String SECRET = "weighting_secret";

    private static final BigDecimal BEYOND = new BigDecimal(BigInteger.ONE.shiftLeft(64).add(BigInteger.ONE));

    private Weightings() {}

    /**
     * Throws CONFIG where so many weightings of one round's updates would say more than one sum over the task's smallest
     * cohort does: what is left by elimination has to be over one device more, which may tell its own, and of an average
     * device's update no more may be told than half.
     */
    static void check(TaskSpec task, int numWeightings) {
        Methods.require(
                numWeightings <= task.smallestSum - task.minCohort,
                task,
                numWeightings + " weightings of sums over " + task.smallestSum + ", of which fewer than " + task.minCohort
                        + " would be left,");
        Methods.require(
                numWeightings * DEVICES_PER_WEIGHTING <= task.smallestSum,
                task,
                numWeightings + " weightings of sums over " + task.smallestSum + ", which nearly tell single updates,");
    }

    /** Returns what this device's draws follow from: what it kept of its first counted round, before that a new one. */
    static byte[] secret(Methods.Job job, RoundFaces faces) {
        Tensor kept = faces.state.get(SECRET);
        if (kept == null) {
            return job.secret;
        }
        float[] values = kept.values();
        byte[] secret = new byte[values.length];
        for (int i = 0; i < secret.length; i++) {
            secret[i] = (byte) (int) values[i];
        }
        return secret;
    }

    /** Keeps a secret with what stays of a round; an empty one is none. */
    static void keep(byte[] secret, Map<String, Tensor> state) {
        if (secret.length > 0) {
            float[] values = new float[secret.length];
            for (int i = 0; i < values.length; i++) {
                values[i] = secret[i] & 0xff;
            }
            state.put(SECRET, Tensor.vector(values));
        }
    }

    /**
     * Returns the weights (T) of a device in the candidates, the current one first, as a masked sum can carry them.
     *
     * @param history what became of all weights in each round (R, 3): the winner, what was kept, what was gained
     * @param first its weight before the first round
     * @param secret what this device alone knows: who foresaw the draws could choose a history for them
     */
    static double[] of(TaskSpec task, String device, float[][] history, int numCandidates, double first, byte[] secret) {
        if (history.length >= task.rounds) {
            throw impossible();
        }
        float keeps = (float) (1 - task.options.real("mixing", 0.01));
        byte[] seed = Bytes.concat(Bytes.sha256(Bytes.utf8("pfm_fv/" + task.name + "/" + task.seed)), secret);
        double kept = 1;
        double added = 0;
        for (int round = 0; round < history.length; round++) {
            int winner = winner(history[round], numCandidates, keeps);
            if (winner > 0) {
                double keep = history[round][1];
                kept = keep * kept;
                added = keep * added + history[round][2] * draw(seed, round, winner, device);
            }
        }
        double[] weights = new double[numCandidates];
        weights[0] = kept * first + added;
        for (int candidate = 1; candidate < numCandidates; candidate++) {
            weights[candidate] = draw(seed, history.length, candidate, device);
        }
        return scaled(task, weights);
    }

    private static int winner(float[] round, int numCandidates, float keeps) {
        int winner = (int) round[0];
        boolean isOne = winner == round[0] && winner >= 0 && winner < numCandidates;
        boolean canBe = winner == 0 ? round[1] == 1 && round[2] == 0 : round[1] == keeps && round[2] >= 0;
        if (!isOne || !canBe) {
            throw impossible();
        }
        return winner;
    }

    private static MienException impossible() {
        return new MienException(
                ErrorCode.CORRUPT_DATA,
                "the server told a history of weights that cannot be; leave the round, tell the operator");
    }

    /** Times a power of two that all share, at most the clip: a w that outgrew it is cut before it multiplies the update. */
    private static double[] scaled(TaskSpec task, double[] weights) {
        double room = 2 * Math.max(task.maxWeight, MOST_DRAWN / 2);
        double factor = Math.scalb(1.0, Math.getExponent(task.coordinateClip / room));
        double[] scaled = new double[weights.length];
        for (int i = 0; i < scaled.length; i++) {
            scaled[i] = Math.min(weights[i] * factor, task.coordinateClip);
        }
        return scaled;
    }

    /** Returns an exponential draw: those of any set of devices, divided by their sum, are uniform on the simplex. */
    private static double draw(byte[] seed, int round, int candidate, String device) {
        byte[] digest = Bytes.sha256(seed, Bytes.utf8("weighting/" + round + "/" + candidate + "/" + device));
        BigInteger word = new BigInteger(1, Arrays.copyOf(digest, 8));
        return -Math.log(new BigDecimal(word.add(BigInteger.ONE)).divide(BEYOND, MathContext.DECIMAL128).doubleValue());
    }
}
