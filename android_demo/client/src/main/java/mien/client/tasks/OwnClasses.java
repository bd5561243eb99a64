package mien.client.tasks;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.train.Generator;
import mien.client.train.Objective;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * A device's local problem over its own people, by one of the usual losses: what methods minimise that say how steps are
 * taken, and not on what.
 *
 * <p>The source is {@code mien/methods/local_loss.py}.
 */
final class OwnClasses {
    static final String MANY = "class_embeddings";
    static final String VELOCITY = "class_velocity";
    private static final double START_DEVIATION = 0.01;
    static final String POSITIVE = "positive";
    private static final String MEAN_FEATURE = "mean_feature";

    final Objective objective;
    private final String trainedAs;
    private final int dim;

    private OwnClasses(Objective objective, String trainedAs, int dim) {
        this.objective = objective;
        this.trainedAs = trainedAs;
        this.dim = dim;
    }

    /** What a task has where it names none. */
    static final class Usual {
        final String loss;
        final double scale;
        final String start;

        Usual(String loss, double scale, String start) {
            this.loss = loss;
            this.scale = scale;
            this.start = start;
        }
    }

    private static final Usual USUAL = new Usual(POSITIVE, 30, MEAN_FEATURE);

    /** Throws CONFIG for a choice of loss that this program does not know. */
    static void check(TaskSpec task) {
        check(task, USUAL);
    }

    static void check(TaskSpec task, Usual usual) {
        Methods.require(task.reveals.isEmpty(), task, "privacy.reveals");
        Fields options = task.options;
        double margin = options.real("margin", 0);
        Methods.require(margin > -1 && margin <= 1, task, "options.margin = " + margin);
        double scale = options.real("scale", usual.scale);
        Methods.require(scale > 0 && scale <= 1e4, task, "options.scale = " + scale);
        String loss = options.text("loss", usual.loss);
        Methods.require(Arrays.asList(POSITIVE, "softmax", "cosface", "arcface").contains(loss), task, "options.loss");
        String start = options.text("class_start", usual.start);
        Methods.require(Arrays.asList(MEAN_FEATURE, "random").contains(start), task, "options.class_start");
    }

    /** Returns the problem of a task's loss, with class embeddings as they were kept or as they start. */
    static OwnClasses of(Methods.Job job, RoundFaces faces) {
        return of(job, faces, USUAL);
    }

    static OwnClasses of(Methods.Job job, RoundFaces faces, Usual usual) {
        Fields options = job.task.options;
        String loss = options.text("loss", usual.loss);
        boolean isRandom = options.text("class_start", usual.start).equals("random");
        float[][] own = isRandom ? random(job, faces) : start(job, faces, MANY);
        double margin = options.real("margin", usualMargin(loss));
        if (loss.equals(POSITIVE)) {
            return new OwnClasses(hinge(faces, own, margin), FedAvg.OWN, job.dim());
        }
        Objective objective = softmax(form(loss, margin), faces.labels, own, options.real("scale", usual.scale), margin);
        return new OwnClasses(objective, MANY, job.dim());
    }

    /** Returns a class embedding for each person: what was kept, new ones as they are drawn. */
    private static float[][] random(Methods.Job job, RoundFaces faces) {
        float[][] kept = Rows.rows(faces.state.get(MANY), job.dim());
        int numPeople = faces.numPeople();
        return kept.length >= numPeople ? kept : carriedOver(kept, drawn(job.seed, numPeople, job.dim()));
    }

    /** Returns rows of normal numbers as class embeddings start at random. */
    static float[][] drawn(long seed, int numRows, int dim) {
        Generator random = new Generator(seed);
        float[][] rows = new float[numRows][dim];
        for (float[] row : rows) {
            for (int d = 0; d < dim; d++) {
                row[d] = (float) (START_DEVIATION * random.normal());
            }
        }
        return rows;
    }

    private static float[][] carriedOver(float[][] kept, float[][] start) {
        System.arraycopy(kept, 0, start, 0, Math.min(kept.length, start.length));
        return start;
    }

    /** Lets the class embeddings begin with the momentum that was kept of them. */
    void carryVelocity(RoundFaces faces) {
        float[][] kept = Rows.rows(faces.state.get(VELOCITY), dim);
        Tensor vectors = objective.privateTensor(trainedAs);
        float[][] begin = carriedOver(kept, new float[vectors.values().length / dim][dim]);
        objective.velocity(trainedAs, new Tensor(Rows.joined(begin), vectors.shape));
    }

    /** Returns what stays, with the momentum of the class embeddings. */
    Map<String, Tensor> keptWithVelocity(Trained trained) {
        Map<String, Tensor> state = kept(trained);
        state.put(VELOCITY, Rows.tensor(Rows.rows(trained.velocity.get(trainedAs), dim)));
        return state;
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

    /** Returns what stays of training for the next round. */
    Map<String, Tensor> kept(Trained trained) {
        return kept(trained, trainedAs, MANY, dim);
    }

    static Map<String, Tensor> kept(Trained trained, String trainedAs, String keptAs, int dim) {
        Map<String, Tensor> state = new LinkedHashMap<>();
        state.put(keptAs, Rows.tensor(Rows.rows(trained.privateTensors.get(trainedAs), dim)));
        return state;
    }

    static Objective hinge(RoundFaces faces, float[][] own, double margin) {
        if (own.length == 1) {
            return new Objective("positive_hinge")
                    .trained(FedAvg.OWN, Tensor.vector(own[0]), true)
                    .constant("margin", margin);
        }
        return new Objective("positive_hinge_many")
                .trained(FedAvg.OWN, Rows.tensor(own), true)
                .rows("target", Rows.oneHot(faces.labels, own.length))
                .constant("margin", margin);
    }

    /** Returns a head's loss over its classes: over inner products, or over cosines with scale and margin. */
    static Objective head(String kind, int[] classes, float[][] rows, double scale, double margin) {
        boolean isNormalised = !kind.equals("softmax");
        Objective objective =
                new Objective(form(kind, margin))
                        .trained(MANY, Rows.tensor(rows), isNormalised)
                        .rows("target", Rows.oneHot(classes, rows.length));
        return isNormalised ? objective.constant("scale", scale).constant("margin", margin) : objective;
    }

    /** Returns a loss's name among the exported graphs. */
    private static String form(String loss, double margin) {
        return loss.equals("arcface") ? "arcface_margin" + margin : loss;
    }

    /** Returns an option that is one of a few, the first of them where it is left out; throws CONFIG for another. */
    static String choice(TaskSpec task, String name, Fields of, String... known) {
        String chosen = of == null ? known[0] : of.text(name, known[0]);
        Methods.require(Arrays.asList(known).contains(chosen), task, "options: " + name + " = " + chosen);
        return chosen;
    }

    static Objective softmax(String form, int[] classes, float[][] rows, double scale, double margin) {
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

    /** Returns a class embedding for each person: what was kept, for new ones the mean feature. */
    static float[][] start(Methods.Job job, RoundFaces faces, String name) {
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
