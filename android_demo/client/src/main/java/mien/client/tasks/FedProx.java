package mien.client.tasks;

import mien.client.model.PublicShard;
import mien.client.train.Trained;

/** FedProx's device half: the usual losses, and steps that are held near the round's model. */
final class FedProx extends DeviceHalf {
    FedProx() {
        super("fedprox", OwnClasses.MANY);
    }

    /** Twice more: what was received and what a step adds to the gradient. */
    @Override
    int copies(TaskSpec task) {
        return Methods.PLAIN_COPIES + 2;
    }

    @Override
    void check(TaskSpec task) {
        OwnClasses.check(task);
        task.options.has("mu");
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        OwnClasses problem = OwnClasses.of(job, faces);
        Trained trained = job.train(faces.crops, problem.objective.proximal(job.task.options.real("mu", 0.01)));
        return job.output(trained, faces, problem.kept(trained));
    }
}
