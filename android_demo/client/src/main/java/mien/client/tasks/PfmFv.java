package mien.client.tasks;

import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.ParameterPart;
import mien.client.model.PublicShard;
import mien.client.train.LocalSpec;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * PFM's trainer: momentum of the cohort's mean in every step, and classifiers with a momentum of their own that stay. Under
 * federated validation it sends its update under every weighting that validators choose from.
 *
 * <p>The source is {@code mien/methods/pfm_fv.py}.
 */
final class PfmFv extends DeviceHalf {
    private static final String MOMENTUM = "momentum";
    private static final String IMAGES = "images";
    private static final String ALIKE = "uniform";
    private static final String ROUND = "round";
    private static final String HISTORY = "history";
    private static final String LOCAL_NORM = "local_norm";
    private static final String OFF = "off";
    private static final int MOST_ELEMENTS = 1 << 28;
    private static final List<String> SHARED = Collections.unmodifiableList(Arrays.asList(ROUND, MOMENTUM, HISTORY));
    private static final OwnClasses.Usual USUAL = new OwnClasses.Usual("arcface", 64, "random");

    PfmFv() {
        super("pfm_fv", OwnClasses.MANY, OwnClasses.VELOCITY);
    }

    @Override
    List<String> told(TaskSpec task) {
        return SHARED;
    }

    /** More: the momentum, what a step adds, and the update under every weighting, in numbers and in bytes. */
    @Override
    int copies(TaskSpec task) {
        return Methods.PLAIN_COPIES + 3 + (isValidated(task) ? 2 * candidates(task) : 0);
    }

    @Override
    void check(TaskSpec task) {
        OwnClasses.check(task, USUAL);
        LocalSpec local = task.local;
        boolean isPlain = local.momentum == 0 && !local.namesPrivateMomentum && local.lrDropEpoch == 0;
        Methods.require(isPlain, task, "momentum or a drop of its rate beside the method's,");
        Methods.require(task.serverLr == 1 && task.serverMomentum == 0, task, "another server's step than the mean");
        Fields options = task.options;
        OwnClasses.choice(task, "validation", options, LOCAL_NORM, "moving_norm", "no_norm", OFF);
        OwnClasses.choice(task, "momentum", options, "partially_federated", "local");
        OwnClasses.choice(task, "first_weighting", options, IMAGES, ALIKE);
        OwnClasses.choice(task, "score", options, "accuracy", "tar");
        double beta = beta(task);
        Methods.require(beta >= 0 && beta < 1, task, "options.beta = " + beta);
        for (String share : new String[] {"mixing", "moving"}) {
            double value = options.real(share, 0.01);
            Methods.require(value >= 0 && value <= 1, task, "options: " + share + " = " + value);
        }
        double epsilon = options.real("epsilon", 0.001);
        Methods.require(epsilon > 0 && epsilon <= 1e3, task, "options.epsilon = " + epsilon);
        double fmr = options.real("score_fmr", 0.01);
        Methods.require(fmr > 0 && fmr < 1, task, "options.score_fmr = " + fmr);
        long last = 0;
        for (Object each : drops(options)) {
            boolean isLater = each instanceof Long && (Long) each > last;
            Methods.require(isLater, task, "options.lr_drop_rounds that do not rise");
            last = (Long) each;
        }
        long candidates = options.number("candidates", 3);
        Methods.require(candidates >= 2 && candidates <= 64, task, "options.candidates = " + candidates);
        if (isValidated(task)) {
            Weightings.check(task, candidates(task));
        }
    }

    @Override
    boolean isValidated(TaskSpec task) {
        return !task.options.text("validation", LOCAL_NORM).equals(OFF);
    }

    private static int candidates(TaskSpec task) {
        return (int) task.options.number("candidates", 3);
    }

    @Override
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        if (!isValidated(task)) {
            return new ContributionLayout(part);
        }
        int candidates = candidates(task);
        Methods.require((long) candidates * part.size <= MOST_ELEMENTS, task, candidates + " models of that size");
        Map<String, Integer> lanes = new LinkedHashMap<>();
        lanes.put("loss_before", 1);
        lanes.put("loss_after", 1);
        lanes.put("weightings", candidates);
        lanes.put("deltas", candidates * part.size);
        return new ContributionLayout(lanes, part.size);
    }

    private static List<?> drops(Fields options) {
        return options.has("lr_drop_rounds") ? options.list("lr_drop_rounds") : Collections.emptyList();
    }

    private static String weighing(TaskSpec task) {
        return task.options.text("first_weighting", IMAGES);
    }

    private static double beta(TaskSpec task) {
        return task.options.real("beta", 0.9);
    }

    /** Returns the rate of a round, counted from 1. */
    private static double rate(TaskSpec task, int round) {
        int dropped = 0;
        for (Object each : drops(task.options)) {
            dropped += (Long) each < round ? 1 : 0;
        }
        return task.local.lr * Math.pow(0.1, dropped);
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        double beta = beta(job.task);
        boolean isLocal = job.task.options.text("momentum", "partially_federated").equals("local");
        double rate = rate(job.task, Math.max(1, job.told.number(ROUND)));
        LocalSpec local = job.task.local.with(rate, isLocal ? beta : 0, beta);
        OwnClasses problem = OwnClasses.of(job, faces, USUAL);
        problem.carryVelocity(faces);
        if (!isLocal) {
            double each = beta / job.task.local.numSteps(faces.crops.length);
            float[] offset = job.told.vectorOrZeros(MOMENTUM, job.part.size).clone();
            for (int i = 0; i < offset.length; i++) {
                offset[i] = (float) (each * offset[i]);
            }
            problem.objective.offset(offset);
        }
        Trained trained = job.train(faces.crops, problem.objective, local);
        Map<String, Tensor> state = problem.keptWithVelocity(trained);
        if (isValidated(job.task)) {
            byte[] secret = Weightings.secret(job, faces);
            Weightings.keep(secret, state);
            return new Methods.Output(weighted(job, faces, trained, secret), state);
        }
        int weight = weighing(job.task).equals(ALIKE) ? 1 : faces.crops.length;
        return job.output(job.weight(weight), trained, state);
    }

    /** Returns the update under each weighting of the candidates. */
    private static byte[] weighted(Methods.Job job, RoundFaces faces, Trained trained, byte[] secret) {
        float[][] history = job.told.rows(HISTORY, 3);
        if (history == null) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "the server told no history of weights; the task needs federated validation's server");
        }
        double first = weighing(job.task).equals(ALIKE) ? 1 : job.weight(faces.crops.length);
        double[] weights = Weightings.of(job.task, job.device, history, candidates(job.task), first, secret);
        float[] received = job.parameters().gather(job.part);
        float[] lanes = new float[2 + weights.length * (1 + received.length)];
        lanes[0] = (float) trained.lossBefore;
        lanes[1] = (float) trained.lossAfter;
        int at = 2 + weights.length;
        for (int candidate = 0; candidate < weights.length; candidate++) {
            lanes[2 + candidate] = (float) weights[candidate];
            for (int i = 0; i < received.length; i++) {
                lanes[at++] = (float) (weights[candidate] * (trained.values[i] - received[i]));
            }
        }
        return job.layout.pack(lanes);
    }
}
