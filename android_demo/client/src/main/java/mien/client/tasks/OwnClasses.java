package mien.client.tasks;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.PublicShard;
import mien.client.train.Generator;
import mien.client.train.Objective;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/** FedAvg's and FedProx's device halves: the usual losses over the device's own people, of whom there may be several. */
final class OwnClasses {
    static final String OWN = "class_embedding";
    static final String MANY = "class_embeddings";
    private static final String PUBLIC = "public_embeddings";
    private static final String POSITIVE = "positive";

    private OwnClasses() {}

    static void check(TaskSpec task) {
        Fields options = task.options;
        String loss = options.text("loss", POSITIVE);
        options.has("margin");
        if (task.method.equals("fedavg")) {
            Methods.require(loss.equals(POSITIVE) || loss.equals("cosface"), task, "options.loss");
            cosface(options);
        } else {
            Methods.require(Arrays.asList(POSITIVE, "softmax", "cosface", "arcface").contains(loss), task, "options.loss");
            options.has("mu");
            options.has("scale");
            String start = options.text("class_start", "mean_feature");
            Methods.require(start.equals("mean_feature"), task, "options.class_start");
        }
    }

    /** Returns scale, margin, and how many public images join each round. */
    private static double[] cosface(Fields options) {
        double[] spec = {30, 0.4, 0};
        if (options.has("cosface")) {
            Fields given = options.object("cosface");
            spec[0] = given.real("scale", 30);
            spec[1] = given.real("margin", 0.4);
            spec[2] = given.number("public_images", 0);
            given.end();
        }
        return spec;
    }

    static Methods.Output fedAvg(Methods.Job job, RoundFaces faces, PublicShard shard) {
        Fields options = job.task.options;
        float[][] own = start(job, faces, OWN);
        if (options.text("loss", POSITIVE).equals(POSITIVE)) {
            return positive(job, faces, own, options.real("margin", 0.9));
        }
        double[] spec = cosface(options);
        return spec[2] > 0 ? beside(job, faces, own, spec, shard) : apart(job, faces, own, spec);
    }

    /** The update of a device that draws each image and its person's class embedding together. */
    static Methods.Output positive(Methods.Job job, RoundFaces faces, float[][] own, double margin) {
        return train(job, faces, hinge(faces, own, margin), OWN, OWN);
    }

    private static Objective hinge(RoundFaces faces, float[][] own, double margin) {
        if (own.length == 1) {
            return new Objective("positive_hinge").trained(OWN, Tensor.vector(own[0]), true).constant("margin", margin);
        }
        return new Objective("positive_hinge_many")
                .trained(OWN, Rows.tensor(own), true)
                .rows("target", Rows.oneHot(faces.labels, own.length))
                .constant("margin", margin);
    }

    /** CosFace over the device's own people alone. */
    private static Methods.Output apart(Methods.Job job, RoundFaces faces, float[][] own, double[] spec) {
        return train(job, faces, softmax("cosface", faces.labels, own, spec[0], spec[1]), MANY, OWN);
    }

    private static Objective softmax(String form, int[] classes, float[][] rows, double scale, double margin) {
        if (rows.length < 2) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "this phone holds one person, and a softmax over one class teaches nothing; it stays out of this task");
        }
        return new Objective(form)
                .trained(MANY, Rows.tensor(rows), false)
                .rows("target", Rows.oneHot(classes, rows.length))
                .constant("scale", scale)
                .constant("margin", margin);
    }

    /** CosFace over own and public people, on own images and some public ones. */
    private static Methods.Output beside(
            Methods.Job job, RoundFaces faces, float[][] own, double[] spec, PublicShard shard) {
        if (shard == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "the task trains beside public faces, and the model has none; tell the operator");
        }
        float[][] known = Rows.rows(faces.state.get(PUBLIC), job.dim());
        if (known.length != shard.numIdentities) {
            known = Rows.means(job.embed(shard), shard.labels, shard.numIdentities);
        }
        int[] order = new Generator(job.seed).permutation(shard.numCrops());
        int numChosen = (int) Math.min(spec[2], order.length);
        byte[][] crops = Arrays.copyOf(faces.crops, faces.crops.length + numChosen);
        int[] classes = Arrays.copyOf(faces.labels, crops.length);
        for (int i = 0; i < numChosen; i++) {
            crops[faces.crops.length + i] = shard.crop(order[i]);
            classes[faces.crops.length + i] = own.length + shard.labels[order[i]];
        }
        float[][] rows = Arrays.copyOf(own, own.length + known.length);
        System.arraycopy(known, 0, rows, own.length, known.length);
        Trained trained = job.train(crops, softmax("cosface", classes, rows, spec[0], spec[1]));
        float[][] vectors = Rows.rows(trained.privateTensors.get(MANY), job.dim());
        Map<String, Tensor> state = new LinkedHashMap<>();
        state.put(OWN, Rows.tensor(Arrays.copyOf(vectors, own.length)));
        state.put(PUBLIC, Rows.tensor(Arrays.copyOfRange(vectors, own.length, vectors.length)));
        return job.output(trained, faces, state);
    }

    /** FedAvg whose steps are held near the round's model. */
    static Methods.Output fedProx(Methods.Job job, RoundFaces faces) {
        Fields options = job.task.options;
        String loss = options.text("loss", POSITIVE);
        float[][] own = start(job, faces, MANY);
        double margin = options.real("margin", usualMargin(loss));
        boolean isPositive = loss.equals(POSITIVE);
        String form = loss.equals("arcface") ? "arcface_margin" + margin : loss;
        Objective objective =
                isPositive
                        ? hinge(faces, own, margin)
                        : softmax(form, faces.labels, own, options.real("scale", 30), margin);
        return train(job, faces, objective.proximal(options.real("mu", 0.01)), isPositive ? OWN : MANY, MANY);
    }

    private static double usualMargin(String loss) {
        switch (loss) {
            case POSITIVE:
                return 0.9;
            case "cosface":
                return 0.35;
            case "arcface":
                return 0.5;
            default:
                return 0;
        }
    }

    private static Methods.Output train(
            Methods.Job job, RoundFaces faces, Objective objective, String trainedAs, String keptAs) {
        Trained trained = job.train(faces.crops, objective);
        Map<String, Tensor> state = new LinkedHashMap<>();
        state.put(keptAs, Rows.tensor(Rows.rows(trained.privateTensors.get(trainedAs), job.dim())));
        return job.output(trained, faces, state);
    }

    /** Returns a class embedding for each person: what was kept, for new ones the mean feature. */
    private static float[][] start(Methods.Job job, RoundFaces faces, String name) {
        float[][] kept = Rows.rows(faces.state.get(name), job.dim());
        int numPeople = faces.numPeople();
        if (kept.length >= numPeople) {
            return kept;
        }
        float[][] rows = Rows.means(job.embed(faces.crops), faces.labels, numPeople);
        System.arraycopy(kept, 0, rows, 0, kept.length);
        return rows;
    }
}
