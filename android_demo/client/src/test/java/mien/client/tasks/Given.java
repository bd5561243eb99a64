package mien.client.tasks;

import java.util.Collections;
import mien.client.Vectors;
import mien.client.model.ModelSpec;
import mien.client.model.ParameterPart;
import mien.client.wire.Bytes;

/** Tasks of vectors that Python wrote, and the contributions to them. */
final class Given {
    private Given() {}

    /** Returns a task, checked. */
    static TaskSpec task(Vectors given) {
        TaskSpec task = new TaskSpec(Bytes.utf8(given.at("json").text()));
        Methods.check(task);
        return task;
    }

    /** Returns the contribution to a task over the vectors' small model, of embeddings of so many numbers. */
    static ContributionLayout layout(TaskSpec task, int dim) throws Exception {
        String json = Vectors.load("golden/client/layouts.json").at("spec_json").text();
        ParameterPart part = ModelSpec.parse(Bytes.utf8(json)).layout.part(Collections.singletonList("mix.*"));
        return Methods.of(task.method).layout(task, part, dim);
    }
}
