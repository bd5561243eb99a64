package mien.client.tasks;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import mien.client.model.PublicShard;
import mien.client.train.LocalSpec;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * PFM's trainer: momentum of the cohort's mean in every step, and classifiers with a momentum of their own that stay; without
 * federated validation, whose candidates this program has no part in.
 *
 * <p>The source is {@code mien/methods/pfm_fv.py}.
 */
final class PfmFv extends DeviceHalf {
    private static final String MOMENTUM = "momentum";
    private static final String IMAGES = "images";
    private static final String ALIKE = "uniform";
    private static final String ROUND = "round";
    private static final List<String> SHARED = Collections.unmodifiableList(Arrays.asList(ROUND, MOMENTUM, "history"));
    private static final OwnClasses.Usual USUAL = new OwnClasses.Usual("arcface", 64, "random");

    PfmFv() {
        super("pfm_fv", OwnClasses.MANY, OwnClasses.VELOCITY);
    }

    @Override
    List<String> told(TaskSpec task) {
        return SHARED;
    }

    /** More: the momentum, and what a step adds. */
    @Override
    int copies(TaskSpec task) {
        return Methods.PLAIN_COPIES + 3;
    }

    @Override
    void check(TaskSpec task) {
        OwnClasses.check(task, USUAL);
        LocalSpec local = task.local;
        boolean isPlain = local.momentum == 0 && !local.namesPrivateMomentum && local.lrDropEpoch == 0;
        Methods.require(isPlain, task, "momentum or a drop of its rate beside the method's,");
        Methods.require(task.serverLr == 1 && task.serverMomentum == 0, task, "another server's step than the mean");
        Fields options = task.options;
        String validation = options.text("validation", "local_norm");
        Methods.require(validation.equals("off"), task, "options.validation = " + validation);
        String momentum = options.text("momentum", "partially_federated");
        boolean isKnown = Arrays.asList("partially_federated", "local").contains(momentum);
        Methods.require(isKnown, task, "options.momentum = " + momentum);
        double beta = beta(task);
        Methods.require(beta >= 0 && beta < 1, task, "options.beta = " + beta);
        long last = 0;
        for (Object each : drops(options)) {
            boolean isLater = each instanceof Long && (Long) each > last;
            Methods.require(isLater, task, "options.lr_drop_rounds that do not rise");
            last = (Long) each;
        }
        String weighing = weighing(task);
        Methods.require(
                weighing.equals(ALIKE) || weighing.equals(IMAGES), task, "options.first_weighting = " + weighing);
        // What validators do is for none of them to judge.
        for (String unused : new String[] {"candidates", "mixing", "epsilon", "moving", "score", "score_fmr"}) {
            options.has(unused);
        }
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
        int weight = weighing(job.task).equals(ALIKE) ? 1 : faces.crops.length;
        return job.output(job.weight(weight), trained, problem.keptWithVelocity(trained));
    }
}
