package mien.client.fl;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.BooleanSupplier;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.Model;
import mien.client.model.ParameterPart;
import mien.client.model.PublicShard;
import mien.client.train.Generator;
import mien.client.train.GraphRuntime;
import mien.client.train.Objective;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * The device halves of FedAvg (positive loss) and FedFace (private forms): what a phone of one person minimises.
 *
 * <p>FedFace in its softmax form tells its person from the nearest public people; the class embedding never leaves.
 */
final class Methods {
    private static final String OWN = "class_embedding";
    private static final String MANY = "class_embeddings";
    private static final String PUBLIC = "public_embeddings";

    /** What a round of training made: the update, and what stays here. */
    static final class Output {
        final Trained trained;
        final Map<String, Tensor> state;

        Output(Trained trained, Map<String, Tensor> state) {
            this.trained = trained;
            this.state = state;
        }
    }

    private final GraphRuntime runtime;
    private final Model model;
    private final ParameterPart part;
    private final TaskSpec task;
    private final long seed;
    private final BooleanSupplier shouldStop;

    Methods(
            GraphRuntime runtime,
            Model model,
            ParameterPart part,
            TaskSpec task,
            long seed,
            BooleanSupplier shouldStop) {
        this.runtime = runtime;
        this.model = model;
        this.part = part;
        this.task = task;
        this.seed = seed;
        this.shouldStop = shouldStop;
    }

    /** Throws CONFIG for options that this program does not know or cannot do, before anything is fetched. */
    static void check(TaskSpec task) {
        Fields options = task.options;
        options.has("margin");
        if (task.method.equals("fedavg")) {
            options.has("cosface");
            require(options.text("loss", "positive").equals("positive"), task, "options.loss");
        } else {
            options.has("preset");
            options.has("spread_out");
            form(options);
            publicSpec(options);
            require(!options.has("public_step"), task, "options.public_step");
            if (options.has("moment")) {
                require(options.object("moment").number("every", 0) == 0, task, "options.moment");
            }
        }
        options.end();
    }

    private static void require(boolean holds, TaskSpec task, String option) {
        if (!holds) {
            throw new MienException(
                    ErrorCode.CONFIG, "task '" + task.name + "' asks for " + option + ", which this program cannot");
        }
    }

    private static String form(Fields options) {
        return options.text("private_form", "softmax");
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

    /** Returns one device's round on one person's crops; {@code state} is what earlier rounds kept. */
    Output run(byte[][] crops, Map<String, Tensor> state, PublicShard shard) {
        boolean isHinge = task.method.equals("fedavg") || form(task.options).equals("hinge");
        Tensor kept = state.get(OWN);
        float[] own =
                kept == null ? mean(runtime.embed(model.theta, crops), new int[crops.length], 1)[0] : kept.values;
        return isHinge ? hinge(crops, own) : softmax(crops, own, state, shard);
    }

    private Output hinge(byte[][] crops, float[] own) {
        Objective objective =
                new Objective("positive_hinge")
                        .trained(OWN, Tensor.vector(own), true)
                        .constant("margin", task.options.real("margin", 0.9));
        Trained trained = train(crops, objective);
        Map<String, Tensor> state = new LinkedHashMap<>();
        state.put(OWN, trained.privateTensors.get(OWN));
        return new Output(trained, state);
    }

    private Output softmax(byte[][] crops, float[] own, Map<String, Tensor> state, PublicShard shard) {
        if (shard == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "fedface holds people apart with public faces, and the model has none; tell the operator");
        }
        double[] spec = publicSpec(task.options);
        float[][] everyone = everyone(state, shard);
        int[] nearest = nearest(everyone, own, (int) spec[0]);
        int[] chosen = draw(shard, nearest, (int) spec[1]);
        int numClasses = 1 + nearest.length;
        float[][] rows = new float[numClasses][];
        rows[0] = own;
        int[] place = new int[everyone.length];
        for (int i = 0; i < nearest.length; i++) {
            rows[1 + i] = everyone[nearest[i]];
            place[nearest[i]] = 1 + i;
        }
        int numImages = crops.length + chosen.length;
        byte[][] batch = new byte[numImages][];
        float[] target = new float[numImages * numClasses];
        float[] weight = new float[numImages];
        for (int i = 0; i < numImages; i++) {
            boolean isOwn = i < crops.length;
            int image = isOwn ? i : chosen[i - crops.length];
            batch[i] = isOwn ? crops[i] : shard.crops[image];
            target[i * numClasses + (isOwn ? 0 : place[shard.labels[image]])] = 1;
            weight[i] = isOwn ? 1 : (float) spec[2];
        }
        Objective objective =
                new Objective("cosface")
                        .trained(MANY, new Tensor(joined(rows), numClasses, own.length), true)
                        .rows("target", new Tensor(target, numImages, numClasses))
                        .rows(Objective.WEIGHTS, new Tensor(weight, numImages))
                        .constant("scale", spec[3])
                        .constant("margin", spec[4]);
        Trained trained = train(batch, objective);
        float[] vectors = trained.privateTensors.get(MANY).values;
        for (int i = 0; i < nearest.length; i++) {
            System.arraycopy(vectors, (1 + i) * own.length, everyone[nearest[i]], 0, own.length);
        }
        float[] moved = new float[own.length];
        System.arraycopy(vectors, 0, moved, 0, own.length);
        Map<String, Tensor> after = new LinkedHashMap<>();
        after.put(PUBLIC, new Tensor(joined(everyone), everyone.length, own.length));
        after.put(OWN, Tensor.vector(moved));
        return new Output(trained, after);
    }

    private Trained train(byte[][] crops, Objective objective) {
        return runtime.train(model.theta, part, crops, objective, task.local, seed, shouldStop);
    }

    /** Returns the class embeddings of all public people: what was kept, else their mean features. */
    private float[][] everyone(Map<String, Tensor> state, PublicShard shard) {
        int dim = model.spec.input.dim;
        Tensor kept = state.get(PUBLIC);
        if (kept == null || kept.values.length != shard.numIdentities * dim) {
            return mean(runtime.embed(model.theta, shard.crops), shard.labels, shard.numIdentities);
        }
        float[][] rows = new float[shard.numIdentities][dim];
        for (int i = 0; i < rows.length; i++) {
            System.arraycopy(kept.values, i * dim, rows[i], 0, dim);
        }
        return rows;
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
    private int[] draw(PublicShard shard, int[] people, int most) {
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

    /** Returns each person's mean embedding at length 1. */
    private static float[][] mean(float[][] embeddings, int[] labels, int numPeople) {
        double[][] sums = new double[numPeople][embeddings[0].length];
        for (int i = 0; i < embeddings.length; i++) {
            for (int d = 0; d < embeddings[i].length; d++) {
                sums[labels[i]][d] += embeddings[i][d];
            }
        }
        float[][] rows = new float[numPeople][embeddings[0].length];
        for (int k = 0; k < numPeople; k++) {
            double squares = 0;
            for (double value : sums[k]) {
                squares += value * value;
            }
            if (!(squares > 0)) {
                throw new MienException(ErrorCode.NON_FINITE, "a class vector has no direction; leave the round");
            }
            for (int d = 0; d < rows[k].length; d++) {
                rows[k][d] = (float) (sums[k][d] / Math.sqrt(squares));
            }
        }
        return rows;
    }

    private static float[] joined(float[][] rows) {
        float[] all = new float[rows.length * rows[0].length];
        for (int i = 0; i < rows.length; i++) {
            System.arraycopy(rows[i], 0, all, i * rows[i].length, rows[i].length);
        }
        return all;
    }
}
