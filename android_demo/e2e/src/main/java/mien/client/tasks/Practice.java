package mien.client.tasks;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.model.Model;
import mien.client.model.ParameterPart;
import mien.client.model.PublicShard;
import mien.client.train.GraphRuntime;
import mien.client.train.Tensor;

/** A device half without a coordinator, for tests that compare it with Python's. */
public final class Practice {
    private Practice() {}

    /** Returns the contribution of a round in which the server tells {@code reply}; {@code state} is filled with what stays. */
    public static byte[] run(
            GraphRuntime runtime, Model model, byte[] taskJson, long seed, byte[][] crops, int[] labels,
            PublicShard shard, Map<String, Tensor> state, byte[] reply) {
        TaskSpec task = new TaskSpec(taskJson);
        Methods.check(task);
        ParameterPart part =
                model.spec.layout.part(task.trainable.isEmpty() ? model.spec.trainable : task.trainable);
        ContributionLayout layout = Methods.layout(task, model, part);
        Told told = Told.parse(Collections.singletonList(reply), Methods.told(task), Told.mostBytes(layout));
        Methods.Job job = new Methods.Job(runtime, model, part, layout, task, "device", seed, new byte[0], told,
                        Collections.<String, Model>emptyMap(), () -> false);
        Methods.Output output = Methods.run(job, new RoundFaces(crops, labels, new LinkedHashMap<>(state)), shard);
        state.clear();
        state.putAll(output.state);
        return output.contribution;
    }
}
