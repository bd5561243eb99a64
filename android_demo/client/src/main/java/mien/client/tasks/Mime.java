package mien.client.tasks;

import java.util.Collections;
import java.util.List;
import mien.client.model.ParameterPart;
import mien.client.model.PublicShard;
import mien.client.train.Objective;
import mien.client.train.Trained;

/**
 * MimeLite's device half: the server's momentum, held still during a round, is applied in every step.
 *
 * <p>The source is {@code mien/methods/mime.py}.
 */
final class Mime extends DeviceHalf {
    private static final String MOMENTUM = "momentum";

    Mime() {
        super("mime", OwnClasses.MANY);
    }

    @Override
    List<String> told(TaskSpec task) {
        return Collections.singletonList(MOMENTUM);
    }

    /** More: the momentum, what a step adds, and the gradient that is sent. */
    @Override
    int copies(TaskSpec task) {
        return Methods.PLAIN_COPIES + 4;
    }

    @Override
    void check(TaskSpec task) {
        OwnClasses.check(task);
        Methods.require(task.local.momentum == 0 && task.serverMomentum == 0, task, "momentum beside options.beta,");
        double beta = beta(task);
        Methods.require(beta >= 0 && beta < 1, task, "options.beta = " + beta);
    }

    private static double beta(TaskSpec task) {
        return task.options.real("beta", 0.9);
    }

    @Override
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        return new ContributionLayout(part, Collections.singletonMap("gradient", part.size));
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        double beta = beta(job.task);
        float[] offset = job.told.vectorOrZeros(MOMENTUM, job.part.size).clone();
        for (int i = 0; i < offset.length; i++) {
            offset[i] *= (float) beta;
        }
        OwnClasses problem = OwnClasses.of(job, faces);
        Objective plain = problem.objective.plain();
        Trained trained = job.train(faces.crops, problem.objective.gradientScale(1 - beta).offset(offset));
        // One plain step at rate 1 moves the part by minus the gradient of the loss over all crops.
        Trained step = job.train(faces.crops, plain, job.task.local.oneStep());
        float[] gradient = job.parameters().gather(job.part);
        float weight = job.weight(faces.crops.length);
        for (int i = 0; i < gradient.length; i++) {
            gradient[i] = weight * (gradient[i] - step.values[i]);
        }
        return job.output(trained, faces, problem.kept(trained), gradient);
    }
}
