package mien.client.tasks;

import java.util.Collections;
import java.util.List;
import java.util.Map;
import mien.client.model.ParameterPart;
import mien.client.model.PublicShard;
import mien.client.train.Tensor;
import mien.client.train.Trained;

/**
 * SCAFFOLD's device half: every step is corrected by how this device's gradient differs from the cohort's, and devices count
 * alike.
 *
 * <p>The source is {@code mien/methods/scaffold.py}.
 */
final class Scaffold extends DeviceHalf {
    private static final String CONTROL = "control";

    Scaffold() {
        super("scaffold", OwnClasses.MANY);
    }

    @Override
    List<String> told(TaskSpec task) {
        return Collections.singletonList(CONTROL);
    }

    /** More: both control variates, what a step adds, and the change that is sent. */
    @Override
    int copies(TaskSpec task) {
        return Methods.PLAIN_COPIES + 5;
    }

    @Override
    void check(TaskSpec task) {
        OwnClasses.check(task);
        boolean isPlain = task.local.momentum == 0 && task.local.weightDecay == 0 && task.local.lrDropEpoch == 0;
        Methods.require(isPlain, task, "other steps than plain ones at one rate,");
        long devices = task.options.number("num_devices", 0);
        Methods.require(devices >= 0 && devices <= 1_000_000_000, task, "options.num_devices = " + devices);
    }

    @Override
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        return new ContributionLayout(part, Collections.singletonMap("delta_control", part.size));
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        int size = job.part.size;
        float[] control = job.told.vectorOrZeros(CONTROL, size);
        Tensor kept = faces.state.get(CONTROL);
        float[] own = kept == null || kept.values().length != size ? new float[size] : kept.values();
        float[] offset = new float[size];
        for (int i = 0; i < size; i++) {
            offset[i] = control[i] - own[i];
        }
        OwnClasses problem = OwnClasses.of(job, faces);
        Trained trained = job.train(faces.crops, problem.objective.offset(offset));
        float[] received = job.parameters().gather(job.part);
        float steps = (float) (trained.numSteps * job.task.local.lr);
        float[] next = new float[size];
        double squares = 0;
        double changed = 0;
        for (int i = 0; i < size; i++) {
            float delta = trained.values[i] - received[i];
            next[i] = own[i] - control[i] - delta / steps;
            squares += (double) delta * delta;
            double change = next[i] - own[i];
            changed += change * change;
        }
        float[] change = new float[size];
        // What is kept is what the sum holds of it: a gradient that the clip cuts would later outweigh all honest ones,
        // and leave of this phone's updates nothing but what an earlier sum has told.
        float within = (float) Math.min(1, job.task.l2Clip / Math.max(Math.sqrt(squares + changed), 1e-30));
        for (int i = 0; i < size; i++) {
            change[i] = next[i] - own[i];
            next[i] = own[i] + change[i] * within;
        }
        Map<String, Tensor> state = problem.kept(trained);
        state.put(CONTROL, Tensor.vector(next));
        return job.output(1, trained, state, change);
    }
}
