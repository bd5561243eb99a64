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
import mien.client.train.Generator;
import mien.client.train.Objective;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * FedFace's device half in its private forms: one person, whose class embedding never leaves.
 *
 * <p>In the softmax form the person is told from the nearest public people, in the one against everybody from all other
 * phones' ({@link Everybody}).
 */
final class FedFace extends DeviceHalf {
    private static final String OWN = "class_embedding";
    private static final String MANY = "class_embeddings";
    private static final String PUBLIC = "public_embeddings";

    FedFace() {
        super("fedface");
    }

    @Override
    boolean isForSeveral() {
        return false;
    }

    @Override
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        return isAgainstEverybody(task)
                ? new ContributionLayout(part, Everybody.lanes(dim), Moments.clip(task))
                : new ContributionLayout(part);
    }

    @Override
    List<String> told(TaskSpec task) {
        return isAgainstEverybody(task) ? Everybody.SHARED : Collections.<String>emptyList();
    }

    @Override
    void check(TaskSpec task) {
        Fields options = task.options;
        options.has("margin");
        options.has("preset");
        options.has("spread_out");
        String form = form(task);
        boolean isKnown = Arrays.asList("softmax", "hinge", Everybody.FORM).contains(form);
        Methods.require(isKnown, task, "options.private_form = " + form);
        if (form.equals(Everybody.FORM)) {
            Everybody.check(task);
        } else {
            Methods.require(task.reveals.isEmpty(), task, "privacy.reveals");
            options.has(Everybody.FORM);
        }
        publicSpec(options);
        Methods.require(!options.has("public_step"), task, "options.public_step");
        if (options.has("moment")) {
            Methods.require(options.object("moment").number("every", 0) == 0, task, "options.moment");
        }
    }

    /** Returns the form that a task asks for; it asks for moments where it says that they are shown. */
    private static String form(TaskSpec task) {
        boolean saysMoments = task.reveals.contains(Agreement.CLASS_MOMENT);
        return task.options.text("private_form", saysMoments ? Everybody.FORM : "softmax");
    }

    private static boolean isAgainstEverybody(TaskSpec task) {
        return form(task).equals(Everybody.FORM);
    }

    private static double[] publicSpec(Fields options) {
        double[] spec = {20, 20, 1.0, 16.0, 0.2};
        if (options.has("public")) {
            Fields given = options.object("public");
            spec[0] = given.number("identities", 20);
            spec[1] = given.number("images", 20);
            spec[2] = given.real("weight", 1.0);
            spec[3] = given.real("scale", 16.0);
            spec[4] = given.real("margin", 0.2);
            given.end();
        }
        return spec;
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        if (isAgainstEverybody(job.task)) {
            return Everybody.run(job, faces);
        }
        float[][] kept = Rows.rows(faces.state.get(OWN), job.dim());
        float[] own = kept.length == 1 ? kept[0] : Rows.means(job.embed(faces.crops), faces.labels, 1)[0];
        if (form(job.task).equals("hinge")) {
            float[][] rows = {own};
            return FedAvg.positive(job, faces, rows, job.task.options.real("margin", 0.9));
        }
        return softmax(job, faces, own, shard);
    }

    private static Methods.Output softmax(Methods.Job job, RoundFaces faces, float[] own, PublicShard shard) {
        if (shard == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "fedface holds people apart with public faces, and the model has none; tell the operator");
        }
        double[] spec = publicSpec(job.task.options);
        float[][] everyone = everyone(job, faces.state, shard);
        int[] nearest = nearest(everyone, own, (int) spec[0]);
        int[] chosen = draw(job.seed, shard, nearest, (int) spec[1]);
        float[][] rows = new float[1 + nearest.length][];
        rows[0] = own;
        int[] place = new int[everyone.length];
        for (int i = 0; i < nearest.length; i++) {
            rows[1 + i] = everyone[nearest[i]];
            place[nearest[i]] = 1 + i;
        }
        int numOwn = faces.crops.length;
        byte[][] batch = Arrays.copyOf(faces.crops, numOwn + chosen.length);
        int[] classes = new int[batch.length];
        float[] weight = new float[batch.length];
        Arrays.fill(weight, 0, numOwn, 1);
        for (int i = 0; i < chosen.length; i++) {
            batch[numOwn + i] = shard.crop(chosen[i]);
            classes[numOwn + i] = place[shard.labels[chosen[i]]];
            weight[numOwn + i] = (float) spec[2];
        }
        Objective objective =
                new Objective("cosface")
                        .trained(MANY, Rows.tensor(rows), true)
                        .rows("target", Rows.oneHot(classes, rows.length))
                        .rows(Objective.WEIGHTS, Tensor.vector(weight))
                        .constant("scale", spec[3])
                        .constant("margin", spec[4]);
        Trained trained = job.train(batch, objective);
        float[][] vectors = Rows.rows(trained.privateTensors.get(MANY), own.length);
        for (int i = 0; i < nearest.length; i++) {
            everyone[nearest[i]] = vectors[1 + i];
        }
        Map<String, Tensor> after = new LinkedHashMap<>();
        after.put(PUBLIC, Rows.tensor(everyone));
        after.put(OWN, Tensor.vector(vectors[0]));
        return job.output(trained, faces, after);
    }

    /** Returns the class embeddings of all public people: what was kept, else their mean features. */
    private static float[][] everyone(Methods.Job job, Map<String, Tensor> state, PublicShard shard) {
        float[][] kept = Rows.rows(state.get(PUBLIC), job.dim());
        return kept.length == shard.numIdentities
                ? kept
                : Rows.means(job.embed(shard), shard.labels, shard.numIdentities);
    }

    /** Returns the people nearest to the own class embedding, nearest first. */
    private static int[] nearest(float[][] everyone, float[] own, int most) {
        Integer[] order = new Integer[everyone.length];
        float[] cosines = new float[order.length];
        for (int i = 0; i < order.length; i++) {
            order[i] = i;
            for (int d = 0; d < own.length; d++) {
                cosines[i] += everyone[i][d] * own[d];
            }
        }
        Arrays.sort(order, (a, b) -> Float.compare(cosines[b], cosines[a]));
        int[] nearest = new int[Math.min(most, order.length)];
        for (int i = 0; i < nearest.length; i++) {
            nearest[i] = order[i];
        }
        return nearest;
    }

    /** Returns up to {@code most} public images of these people, drawn without replacement. */
    private static int[] draw(long seed, PublicShard shard, int[] people, int most) {
        boolean[] wanted = new boolean[shard.numIdentities];
        for (int person : people) {
            wanted[person] = true;
        }
        int[] candidates = new int[shard.labels.length];
        int count = 0;
        for (int i = 0; i < candidates.length; i++) {
            if (wanted[shard.labels[i]]) {
                candidates[count++] = i;
            }
        }
        int[] drawn = new Generator(seed).permutation(Arrays.copyOf(candidates, count));
        return Arrays.copyOf(drawn, Math.min(most, count));
    }
}
