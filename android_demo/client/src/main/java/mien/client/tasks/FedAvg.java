package mien.client.tasks;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.PublicShard;
import mien.client.train.Generator;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/** FedAvg's device half: the hinge, or CosFace over the device's own people and, where the task says so, public ones. */
final class FedAvg extends DeviceHalf {
    static final String OWN = "class_embedding";
    private static final String PUBLIC = "public_embeddings";

    FedAvg() {
        super("fedavg", OWN);
    }

    @Override
    void check(TaskSpec task) {
        Methods.require(task.reveals.isEmpty(), task, "privacy.reveals");
        String loss = task.options.text("loss", OwnClasses.POSITIVE);
        task.options.has("margin");
        Methods.require(loss.equals(OwnClasses.POSITIVE) || loss.equals("cosface"), task, "options.loss");
        cosface(task.options);
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

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        Fields options = job.task.options;
        float[][] own = OwnClasses.start(job, faces, OWN);
        if (options.text("loss", OwnClasses.POSITIVE).equals(OwnClasses.POSITIVE)) {
            return positive(job, faces, own, options.real("margin", 0.9));
        }
        double[] spec = cosface(options);
        return spec[2] > 0 ? beside(job, faces, own, spec, shard) : apart(job, faces, own, spec);
    }

    /** The update of a device that draws each image and its person's class embedding together. */
    static Methods.Output positive(Methods.Job job, RoundFaces faces, float[][] own, double margin) {
        Trained trained = job.train(faces.crops, OwnClasses.hinge(faces, own, margin));
        return job.output(trained, faces, OwnClasses.kept(trained, OWN, OWN, job.dim()));
    }

    /** CosFace over the device's own people alone. */
    private static Methods.Output apart(Methods.Job job, RoundFaces faces, float[][] own, double[] spec) {
        Trained trained =
                job.train(faces.crops, OwnClasses.softmax("cosface", faces.labels, own, spec[0], spec[1]));
        return job.output(trained, faces, OwnClasses.kept(trained, OwnClasses.MANY, OWN, job.dim()));
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
        Trained trained = job.train(crops, OwnClasses.softmax("cosface", classes, rows, spec[0], spec[1]));
        float[][] vectors = Rows.rows(trained.privateTensors.get(OwnClasses.MANY), job.dim());
        Map<String, Tensor> state = new LinkedHashMap<>();
        state.put(OWN, Rows.tensor(Arrays.copyOf(vectors, own.length)));
        state.put(PUBLIC, Rows.tensor(Arrays.copyOfRange(vectors, own.length, vectors.length)));
        return job.output(trained, faces, state);
    }
}
