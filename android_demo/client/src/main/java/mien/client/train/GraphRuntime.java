package mien.client.train;

import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.Cut;
import mien.client.model.ModelSpec;
import mien.client.model.ParameterLayout;
import mien.client.model.ParameterPart;
import mien.client.model.Parameters;
import mien.client.model.PublicShard;
import mien.client.wire.Bytes;

/**
 * Embeds and trains one architecture with exported graphs: the same update as Python's, with the same draws.
 *
 * <p>A graph holds a whole step of SGD; parameters, momentum and batches go in, and come out changed.
 */
public final class GraphRuntime {
    private static final double TINY = 1e-12;
    /** A whole number of the batches that embed. */
    private static final int AT_ONCE = 32;

    private static final List<String> NO_PART = Arrays.<String>asList();

    private final ModelSpec spec;
    private final Engine engine;

    /** Trains and embeds with one model by an engine, which others may use as well. */
    public GraphRuntime(ModelSpec spec, Engine engine) {
        this.spec = spec;
        this.engine = engine;
    }

    /** Returns embeddings of aligned crops, each at length 1; throws NON_FINITE for one that is not finite. */
    public float[][] embed(Parameters parameters, byte[][] crops) {
        float[][] rows = features(parameters, crops);
        for (float[] row : rows) {
            normalise(row);
        }
        return rows;
    }

    /** Returns embeddings of some crops of public people, of which few at a time are in memory. */
    public float[][] embed(Parameters parameters, PublicShard shard, int[] chosen) {
        float[][] rows = new float[chosen.length][];
        for (int start = 0; start < rows.length; start += AT_ONCE) {
            byte[][] some = new byte[Math.min(AT_ONCE, rows.length - start)][];
            for (int i = 0; i < some.length; i++) {
                some[i] = shard.crop(chosen[start + i]);
            }
            System.arraycopy(embed(parameters, some), 0, rows, start, some.length);
        }
        return rows;
    }

    /** Returns embeddings as {@link #embed}, but as the network gives them, not normalised. */
    public float[][] features(Parameters given, byte[][] crops) {
        Cut cut = new Cut(spec.layout.part(spec.trainable));
        if (!engine.holds("trunk", cut.stage)) {
            cut = new Cut(spec.layout.part(Arrays.asList("*")));
        }
        Map<String, Tensor> parameters = tensors(given);
        float[] all = new Images(engine, cut, parameters, spec.input, crops).embedAll(parameters).values();
        if (!Bytes.isFinite(all)) {
            throw new MienException(
                    ErrorCode.NON_FINITE, "the model gave an embedding that is NaN or infinite; fetch the model again");
        }
        float[][] rows = new float[crops.length][];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = Arrays.copyOfRange(all, i * spec.input.dim, (i + 1) * spec.input.dim);
        }
        return rows;
    }

    private static void normalise(float[] row) {
        float squares = 0;
        for (float value : row) {
            squares += value * value;
        }
        float length = (float) Math.sqrt(squares + (float) TINY);
        for (int i = 0; i < row.length; i++) {
            row[i] /= length;
        }
    }

    /**
     * Returns what SGD makes of a part and the objective's private tensors, beginning at {@code start}.
     *
     * <p>{@code shouldStop} is asked before every step: LATE where it says so. Throws NON_FINITE when the loss or a
     * parameter stops being finite, NOT_FOUND where no graph trains that part and objective.
     */
    public Trained train(
            Parameters start,
            ParameterPart part,
            byte[][] crops,
            Objective objective,
            LocalSpec local,
            long seed,
            BooleanSupplier shouldStop) {
        if (crops.length == 0) {
            throw new MienException(ErrorCode.CONFIG, "there are no images to train on; enrol first");
        }
        Map<String, Tensor> parameters = tensors(start);
        Job job = new Job(start, part, parameters, objective, local);
        Images images = new Images(engine, job.cut, parameters, spec.input, crops);
        double lossBefore = job.evaluate(images);
        int numSteps = 0;
        for (Schedule batches = new Schedule(local, crops.length, new Generator(seed)); batches.hasNext(); numSteps++) {
            if (shouldStop.getAsBoolean()) {
                throw new MienException(
                        ErrorCode.LATE, "training was stopped before its end; nothing was changed or sent: check in again");
            }
            job.step(images, batches.next());
        }
        double lossAfter = job.evaluate(images);
        boolean isFinite = Bytes.isFinite(job.values);
        // What is kept would keep the phone out of every later round.
        for (Map<String, Tensor> kept : Arrays.asList(job.privateTensors, job.privateVelocity)) {
            for (Tensor each : kept.values()) {
                isFinite &= Bytes.isFinite(each.values());
            }
        }
        if (!isFinite) {
            throw new MienException(ErrorCode.NON_FINITE, "local training diverged to NaN or infinity; leave the round");
        }
        return new Trained(
                job.values, job.privateTensors, job.privateVelocity, lossBefore, lossAfter, numSteps);
    }

    /** Returns the parameters as graphs take them; nothing is copied. */
    private Map<String, Tensor> tensors(Parameters parameters) {
        Map<String, Tensor> tensors = new HashMap<>();
        for (ParameterLayout.Entry entry : spec.layout.entries.values()) {
            tensors.put("parameter." + entry.name, new Tensor(parameters.tensor(entry.name), entry.shape));
        }
        return tensors;
    }

    /** One device's local training: the part's values, the private tensors, and the momentum of both. */
    private final class Job {
        final Cut cut;
        float[] values;
        Map<String, Tensor> privateTensors;
        private final Parameters start;
        private final ParameterPart part;
        private final Map<String, Tensor> parameters;
        private final Objective objective;
        private final LocalSpec local;
        private final Map<String, Tensor> fixed = new HashMap<>();
        private final Map<String, Tensor> privateVelocity = new LinkedHashMap<>();
        private final float[] received;
        private Tensor velocity;

        Job(
                Parameters start,
                ParameterPart part,
                Map<String, Tensor> parameters,
                Objective objective,
                LocalSpec local) {
            this.start = start;
            this.part = part;
            this.parameters = parameters;
            this.objective = objective;
            this.local = local;
            cut = new Cut(part);
            values = start.gather(part);
            received = values;
            velocity = Tensor.vector(new float[part.size]);
            privateTensors = new LinkedHashMap<>(objective.privateTensors);
            for (Map.Entry<String, Tensor> each : privateTensors.entrySet()) {
                Tensor zeros = new Tensor(new float[each.getValue().values().length], each.getValue().shape);
                privateVelocity.put(each.getKey(), objective.velocity.getOrDefault(each.getKey(), zeros));
                boolean isUnit = objective.unitNorm.contains(each.getKey());
                fixed.put("unit_norm." + each.getKey(), Tensor.number(isUnit ? 1 : 0));
            }
            for (Map.Entry<String, Tensor> each : objective.fixed.entrySet()) {
                fixed.put("fixed." + each.getKey(), each.getValue());
            }
            for (Map.Entry<String, Double> each : objective.constants.entrySet()) {
                fixed.put("constant." + each.getKey(), Tensor.number(each.getValue()));
            }
            fixed.put("momentum", Tensor.number(local.momentum));
            fixed.put("private_momentum", Tensor.number(local.privateMomentum));
            fixed.put("weight_decay", Tensor.number(local.weightDecay));
            fixed.put("gradient_scale", Tensor.number(objective.gradientScale));
        }

        void step(Images images, Batch batch) {
            Map<String, Tensor> feed = feed(batch.indices);
            feed.put("trained", Tensor.vector(values));
            feed.put("velocity", velocity);
            feed.put("correction", correction());
            feed.put("mirrored", mirrored(batch));
            feed.put("x", images.batch(batch.indices, batch.mirrored));
            feed.put("lr", Tensor.number(batch.rate * local.lr));
            feed.put("private_lr", Tensor.number(batch.rate * local.privateLr));
            for (String name : privateVelocity.keySet()) {
                feed.put("velocity." + name, carried(name));
            }
            if (local.privateWeightDecay != 0) {
                feed.put("private_momentum", Tensor.number(1));
            }
            Map<String, Tensor> out = engine.run("train", cut.stage, part.names, objective.form, feed);
            if (!Bytes.isFinite(out.get("loss").values())) {
                throw new MienException(ErrorCode.NON_FINITE, "the training loss is NaN or infinite; leave the round");
            }
            values = out.get("trained_out").values();
            velocity = out.get("velocity_out");
            for (String name : privateVelocity.keySet()) {
                privateTensors.put(name, out.get("private_out." + name));
                privateVelocity.put(name, out.get("velocity_out." + name));
            }
        }

        /** Returns a private tensor's momentum as the graph takes it, which knows of no weight decay of private tensors. */
        private Tensor carried(String name) {
            Tensor velocity = privateVelocity.get(name);
            if (local.privateWeightDecay == 0) {
                return velocity;
            }
            float[] last = velocity.values();
            float[] now = privateTensors.get(name).values();
            float[] moved = new float[last.length];
            for (int i = 0; i < moved.length; i++) {
                moved[i] = (float) local.privateMomentum * last[i] + (float) local.privateWeightDecay * now[i];
            }
            return new Tensor(moved, velocity.shape);
        }

        /** Returns what a step adds to the gradient: offset + mu (values - values received). */
        private Tensor correction() {
            boolean isNothing = objective.offset == null && objective.proximal == 0;
            float[] added = new float[isNothing ? 1 : values.length];
            for (int i = 0; !isNothing && i < added.length; i++) {
                float pull = objective.proximal == 0 ? 0 : (float) objective.proximal * (values[i] - received[i]);
                added[i] = objective.offset == null ? pull : objective.offset[i] + pull;
            }
            return Tensor.vector(added);
        }

        /** Returns 1 for each of a batch's crops that is mirrored: some losses have rows for both. */
        private Tensor mirrored(Batch batch) {
            float[] mirrored = new float[batch.mirrored.length];
            for (int i = 0; i < mirrored.length; i++) {
                mirrored[i] = batch.mirrored[i] ? 1 : 0;
            }
            return Tensor.vector(mirrored);
        }

        /** Returns the loss over all crops as they are. */
        double evaluate(Images images) {
            Map<String, Tensor> now = values == received ? parameters : tensors(start.with(part, values));
            int[] all = new int[images.size()];
            for (int i = 0; i < all.length; i++) {
                all[i] = i;
            }
            Map<String, Tensor> feed = feed(all);
            feed.put("embeddings", images.embedAll(now));
            feed.put("mirrored", Tensor.vector(new float[all.length]));
            return engine.run("loss", "", NO_PART, objective.form, feed).get("loss").values()[0];
        }

        /** Returns what every graph of this training takes, with the batch's rows; weights are 1 where none are given. */
        private Map<String, Tensor> feed(int[] indices) {
            Map<String, Tensor> feed = new HashMap<>(parameters);
            feed.putAll(fixed);
            for (Map.Entry<String, Tensor> each : privateTensors.entrySet()) {
                feed.put("private." + each.getKey(), each.getValue());
            }
            float[] ones = new float[indices.length];
            Arrays.fill(ones, 1);
            feed.put("per_crop." + Objective.WEIGHTS, Tensor.vector(ones));
            for (Map.Entry<String, Tensor> each : objective.perCrop.entrySet()) {
                feed.put("per_crop." + each.getKey(), rows(each.getValue(), indices));
            }
            return feed;
        }

        private Tensor rows(Tensor all, int[] indices) {
            float[] values = all.values();
            int width = values.length / (int) all.shape[0];
            float[] some = new float[width * indices.length];
            for (int i = 0; i < indices.length; i++) {
                System.arraycopy(values, indices[i] * width, some, i * width, width);
            }
            long[] shape = all.shape.clone();
            shape[0] = indices.length;
            return new Tensor(some, shape);
        }
    }
}
