package mien.client.tasks;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.ParameterPart;
import mien.client.model.PublicShard;
import mien.client.train.Generator;
import mien.client.train.LocalSpec;
import mien.client.train.Objective;
import mien.client.train.Rows;
import mien.client.train.Tensor;
import mien.client.train.Trained;
import mien.client.wire.Fields;

/**
 * FedGC's device half in its private forms: a classifier over the device's own people, whose vectors stay, corrected against
 * public people or against everybody else by summed moments. FedPE is the same without a correction.
 *
 * <p>The source is {@code mien/methods/fedgc.py}, of the sums {@code mien/methods/moment_correction.py}.
 */
final class FedGc extends DeviceHalf {
    private static final String COUNT = "moment_classes";
    private static final List<String> SHARED =
            Collections.unmodifiableList(
                    Arrays.asList(COUNT, Moments.MEAN, Moments.MOMENT, Moments.NUMBER, Moments.DEVICES));
    private static final double START_DEVIATION = 0.01;

    FedGc() {
        super("fedgc", OwnClasses.MANY);
    }

    @Override
    List<String> told(TaskSpec task) {
        return new Options(task).isEverybody ? SHARED : Collections.<String>emptyList();
    }

    @Override
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        if (!new Options(task).isEverybody) {
            return new ContributionLayout(part);
        }
        Map<String, Integer> sums = new LinkedHashMap<>();
        sums.put(COUNT, 1);
        sums.put(Moments.MEAN, dim);
        sums.put(Moments.MOMENT, Moments.packedSize(dim));
        return new ContributionLayout(part, sums, Moments.clip(task));
    }

    /** The options of a task. */
    private static final class Options {
        final int identities;
        final boolean startsAtMeans;
        final boolean isFixed;
        final String head;
        final double headScale;
        final double headMargin;
        final String correction;
        final double strength;
        final double scale;
        final double margin;
        final double duplicateCosine;
        final boolean isEverybody;
        /** For each identity that several devices hold: the device and its number there. */
        final List<String> sharedDevices = new ArrayList<>();

        final List<Integer> sharedNumbers = new ArrayList<>();

        Options(TaskSpec task) {
            Fields options = task.options;
            long most = options.number("identities", 1);
            Methods.require(most >= 1 && most <= Integer.MAX_VALUE, task, "options.identities = " + most);
            identities = (int) most;
            startsAtMeans = OwnClasses.choice(task, "start", options, "random", "mean_feature").equals("mean_feature");
            isFixed = options.has("fixed") && options.flag("fixed");
            Fields of = options.has("head") ? options.object("head") : null;
            head = OwnClasses.choice(task, "kind", of, "softmax", "cosface", "arcface");
            headScale = real(of, "scale", 64);
            headMargin = real(of, "margin", 0);
            boolean isHead = headScale > 0 && headScale <= Double.MAX_VALUE && headMargin >= 0 && headMargin < Math.PI / 2;
            Methods.require(isHead, task, "options.head that cannot be");
            end(of);
            of = options.has("correction") ? options.object("correction") : null;
            correction = OwnClasses.choice(task, "kind", of, "softmax", "cosine", "none");
            strength = real(of, "strength", 20);
            scale = real(of, "scale", 1);
            margin = real(of, "margin", 0);
            duplicateCosine = real(of, "duplicate_cosine", 1);
            boolean isCorrection =
                    strength >= 0 && strength <= Double.MAX_VALUE && scale > 0 && scale <= Double.MAX_VALUE
                            && margin >= 0 && margin <= Double.MAX_VALUE && duplicateCosine > 0 && duplicateCosine <= 1;
            Methods.require(isCorrection, task, "options.correction that cannot be");
            end(of);
            boolean corrects = !correction.equals("none");
            Methods.require(!(isFixed && corrects), task, "vectors that are fixed and corrected");
            if (options.has("moment")) {
                Methods.require(options.object("moment").number("every", 0) == 0, task, "options.moment");
            }
            boolean saysMoments = task.reveals.contains(Agreement.CLASS_MOMENT);
            String form = options.text("private_form", saysMoments && corrects ? "everybody" : "public");
            Methods.require(Arrays.asList("public", "everybody").contains(form), task, "options.private_form = " + form);
            isEverybody = form.equals("everybody");
            shared(task, options);
        }

        private static double real(Fields of, String name, double otherwise) {
            return of == null ? otherwise : of.real(name, otherwise);
        }

        private static void end(Fields of) {
            if (of != null) {
                of.end();
            }
        }

        private void shared(TaskSpec task, Fields options) {
            Set<String> members = new LinkedHashSet<>();
            for (Object identity : options.has("shared") ? options.list("shared") : Collections.emptyList()) {
                for (Object each : identity instanceof List ? (List<?>) identity : Collections.emptyList()) {
                    List<?> member = each instanceof List ? (List<?>) each : Collections.emptyList();
                    boolean fits =
                            member.size() == 2 && member.get(0) instanceof String && member.get(1) instanceof Long
                                    && (Long) member.get(1) >= 0 && (Long) member.get(1) < identities
                                    && members.add(member.get(1) + " " + member.get(0));
                    Methods.require(fits, task, "options.shared that cannot be");
                    sharedDevices.add((String) member.get(0));
                    sharedNumbers.add((int) (long) (Long) member.get(1));
                }
            }
        }

        boolean corrects() {
            return !correction.equals("none");
        }

        boolean isNormalised() {
            return !head.equals("softmax");
        }

        /** Returns whether no other device holds one of this device's identities, as far as the task says. */
        boolean isAlone(String device, int number) {
            for (int i = 0; i < sharedDevices.size(); i++) {
                if (sharedDevices.get(i).equals(device) && sharedNumbers.get(i) == number) {
                    return false;
                }
            }
            return true;
        }
    }

    @Override
    void check(TaskSpec task) {
        Options options = new Options(task);
        if (!options.isEverybody) {
            Methods.require(task.reveals.isEmpty(), task, "privacy.reveals");
            return;
        }
        Moments.check(task);
        Methods.require(options.corrects(), task, "sums of moments, by which it corrects nothing,");
        Methods.require(options.duplicateCosine == 1, task, "options.correction.duplicate_cosine of people in sums");
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        Options options = new Options(job.task);
        int numPeople = faces.numPeople();
        if (numPeople > options.identities) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "this phone holds " + numPeople + " people, and the task is for phones of " + options.identities
                            + " at most; it stays out of it");
        }
        float[][] own = start(job, faces, options, numPeople);
        if (options.isEverybody) {
            own = correctedByMoments(job, faces, options, own);
        }
        LocalSpec local = options.isFixed ? job.task.local.withPrivateLr(0) : job.task.local;
        Objective objective =
                OwnClasses.head(options.head, faces.labels, own, options.headScale, options.headMargin);
        Trained trained = job.train(faces.crops, objective, local);
        own = options.isFixed ? own : Rows.rows(trained.privateTensors.get(OwnClasses.MANY), job.dim());
        Map<String, Tensor> state = new LinkedHashMap<>();
        if (options.isEverybody) {
            state.put(
                    Moments.OWN_NUMBER, Tensor.vector(new float[] {job.told.number(Moments.NUMBER) + 1}));
            state.put(OwnClasses.MANY, Rows.tensor(own));
            float[][] summed = alone(job, options, own);
            return job.output(trained, faces, state, sums(summed, options.identities, job.dim()));
        }
        if (options.corrects()) {
            own = correctedByPublic(job, options, own, shard);
        }
        state.put(OwnClasses.MANY, Rows.tensor(own));
        return job.output(trained, faces, state);
    }

    /** Returns the vectors as they were kept, and of new people as they start. */
    private static float[][] start(Methods.Job job, RoundFaces faces, Options options, int numPeople) {
        List<float[]> known = new ArrayList<>();
        for (float[] row : Rows.rows(faces.state.get(OwnClasses.MANY), job.dim())) {
            boolean isThere = false;
            for (float value : row) {
                isThere |= value != 0;
            }
            if (isThere) {
                known.add(row);
            }
        }
        float[][] start = new float[numPeople][];
        if (known.size() < numPeople) {
            start =
                    options.startsAtMeans
                            ? Rows.means(job.embed(faces.crops), faces.labels, numPeople)
                            : drawn(job.seed, numPeople, job.dim(), options.isNormalised());
        }
        for (int k = 0; k < Math.min(numPeople, known.size()); k++) {
            start[k] = known.get(k);
        }
        return start;
    }

    private static float[][] drawn(long seed, int numPeople, int dim, boolean atLength1) {
        Generator random = new Generator(seed);
        float[][] rows = new float[numPeople][dim];
        for (float[] row : rows) {
            double[] exact = new double[dim];
            double squares = 0;
            for (int d = 0; d < dim; d++) {
                exact[d] = START_DEVIATION * random.normal();
                squares += exact[d] * exact[d];
            }
            for (int d = 0; d < dim; d++) {
                row[d] = (float) (atLength1 ? exact[d] / Math.sqrt(squares) : exact[d]);
            }
        }
        return rows;
    }

    /** Returns the rows of people whom no other device holds. */
    private static float[][] alone(Methods.Job job, Options options, float[][] rows) {
        List<float[]> alone = new ArrayList<>();
        for (int k = 0; k < rows.length; k++) {
            if (options.isAlone(job.device, k)) {
                alone.add(rows[k]);
            }
        }
        return alone.toArray(new float[0][]);
    }

    /** Returns number, sum and second moment of vectors at length 1, by the most that a device may hold. */
    private static float[] sums(float[][] rows, int most, int dim) {
        double[] mean = new double[dim];
        for (float[] row : rows) {
            double length = length(exact(row));
            for (int d = 0; d < dim; d++) {
                mean[d] += row[d] / length;
            }
        }
        float share = (float) ((double) rows.length / most);
        float[] sums = new float[1 + dim + Moments.packedSize(dim)];
        sums[0] = share;
        for (int d = 0; d < dim; d++) {
            sums[1 + d] = (float) (mean[d] / most);
        }
        float[] moment = Moments.of(rows, dim);
        for (int i = 0; i < moment.length; i++) {
            sums[1 + dim + i] = share * moment[i];
        }
        return sums;
    }

    /** Returns the vectors after the step against all others' by their moments; those that were never trained stay. */
    private static float[][] correctedByMoments(Methods.Job job, RoundFaces faces, Options options, float[][] own) {
        int dim = job.dim();
        int number = job.told.number(Moments.NUMBER);
        Tensor when = faces.state.get(Moments.OWN_NUMBER);
        if (number < 1 || when == null) {
            return own;
        }
        float[][] kept = Rows.rows(faces.state.get(OwnClasses.MANY), dim);
        float[] count = job.told.vector(COUNT, 1);
        float[] mean = job.told.vector(Moments.MEAN, dim);
        float[] moment = job.told.vector(Moments.MOMENT, Moments.packedSize(dim));
        boolean isThere = (int) when.values()[0] == number;
        int clients = job.told.number(Moments.DEVICES) - (isThere ? 1 : 0);
        if (count == null || mean == null || moment == null || clients < 1) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "the server told of sums of classes and not what they are, or of nobody else's; leave the round, tell the"
                            + " operator");
        }
        float[][] counted = isThere ? alone(job, options, kept) : new float[0][];
        float[] mine = sums(counted, options.identities, dim);
        double most = options.identities;
        double share = Math.max((double) count[0] - mine[0], 1.0 / most);
        double[] mu = new double[dim];
        for (int d = 0; d < dim; d++) {
            mu[d] = ((double) mean[d] - mine[1 + d]) / share;
        }
        double[] rest = new double[moment.length];
        for (int i = 0; i < rest.length; i++) {
            rest[i] = (double) moment[i] - mine[1 + dim + i];
        }
        double[][] covariance = Moments.covariance(rest, share, mu);
        double others = Math.rint(share * most);
        double length = options.isNormalised() ? 1 : meanLength(own);
        float[][] after = own.clone();
        for (int k = 0; k < Math.min(own.length, kept.length); k++) {
            if (!options.isAlone(job.device, k)) {
                continue;
            }
            double[] w = exact(own[k]);
            double[] gradient = new double[dim];
            for (int d = 0; d < dim; d++) {
                gradient[d] = others * length * mu[d];
            }
            if (!options.correction.equals("cosine")) {
                gradient = softmaxGradient(w, options, others, mu, covariance, length);
            }
            after[k] = stepped(w, gradient, options, job.task.local.lr);
        }
        return after;
    }

    /** Returns the gradient of the softmax regulariser against others who are known by two moments. */
    private static double[] softmaxGradient(
            double[] w, Options options, double others, double[] mu, double[][] covariance, double length) {
        double scale = options.scale;
        double own = scale * (dot(w, w) - options.margin);
        double[] spread = new double[w.length];
        for (int row = 0; row < w.length; row++) {
            spread[row] = length * length * dot(covariance[row], w);
        }
        double logit =
                scale * length * dot(w, mu) + scale * scale / 2 * dot(spread, w) + Math.log(others) - own;
        double share = Math.exp(-logAddExp(0, -logit));
        double[] gradient = new double[w.length];
        for (int d = 0; d < w.length; d++) {
            gradient[d] = scale * share * (length * mu[d] + scale * spread[d]);
        }
        return gradient;
    }

    /** Returns the vectors after the step away from public people, each of whom stands for another device. */
    private static float[][] correctedByPublic(Methods.Job job, Options options, float[][] own, PublicShard shard) {
        if (shard == null) {
            throw new MienException(
                    ErrorCode.CONFIG, "fedgc corrects by public faces, and the model has none; tell the operator");
        }
        float[][] others = Rows.means(job.embed(shard), shard.labels, shard.numIdentities);
        float length = options.isNormalised() ? 1 : (float) meanLength(own);
        double[][] anchors = new double[others.length][];
        for (int a = 0; a < anchors.length; a++) {
            for (int d = 0; d < others[a].length; d++) {
                others[a][d] *= length;
            }
            anchors[a] = exact(others[a]);
        }
        double[][] w = new double[own.length][];
        double[][] gradient = new double[own.length][job.dim()];
        for (int k = 0; k < own.length; k++) {
            w[k] = exact(own[k]);
        }
        for (int a = 0; a < anchors.length; a++) {
            double[] weights = weights(w, anchors[a], a, anchors, options);
            for (int k = 0; k < own.length; k++) {
                for (int d = 0; d < gradient[k].length; d++) {
                    gradient[k][d] += weights[k] * anchors[a][d];
                }
            }
        }
        float[][] after = new float[own.length][];
        for (int k = 0; k < own.length; k++) {
            after[k] = stepped(w[k], gradient[k], options, job.task.local.lr);
        }
        return after;
    }

    /** Returns how strongly an anchor pushes each own vector, among all classes of other devices than its own. */
    private static double[] weights(double[][] w, double[] anchor, int own, double[][] anchors, Options options) {
        int numOwn = w.length;
        double[] weights = new double[numOwn];
        boolean[] isPushed = new boolean[numOwn + anchors.length];
        for (int c = 0; c < isPushed.length; c++) {
            double[] other = c < numOwn ? w[c] : anchors[c - numOwn];
            isPushed[c] =
                    c != numOwn + own
                            && (options.duplicateCosine == 1
                                    || dot(other, anchor) / length(other) / length(anchor) <= options.duplicateCosine);
        }
        if (options.correction.equals("cosine")) {
            for (int k = 0; k < numOwn; k++) {
                weights[k] = isPushed[k] ? 1 : 0;
            }
            return weights;
        }
        double[] logits = new double[isPushed.length];
        double ownLogit = options.scale * (dot(anchor, anchor) - options.margin);
        double top = ownLogit;
        for (int c = 0; c < logits.length; c++) {
            logits[c] = options.scale * dot(c < numOwn ? w[c] : anchors[c - numOwn], anchor);
            top = isPushed[c] ? Math.max(top, logits[c]) : top;
        }
        double total = Math.exp(ownLogit - top);
        for (int c = 0; c < logits.length; c++) {
            total += isPushed[c] ? Math.exp(logits[c] - top) : 0;
        }
        for (int k = 0; k < numOwn; k++) {
            weights[k] = isPushed[k] ? options.scale * Math.exp(logits[k] - top) / total : 0;
        }
        return weights;
    }

    /** Returns a vector after a step of the correction. */
    private static float[] stepped(double[] w, double[] gradient, Options options, double lr) {
        double[] moved = new double[w.length];
        for (int d = 0; d < w.length; d++) {
            moved[d] = w[d] - options.strength * lr * gradient[d];
        }
        double length = options.isNormalised() ? length(moved) : 1;
        for (int d = 0; d < moved.length; d++) {
            moved[d] /= length;
        }
        return Moments.floats(moved);
    }

    private static double meanLength(float[][] rows) {
        double sum = 0;
        for (float[] row : rows) {
            sum += length(exact(row));
        }
        return sum / rows.length;
    }

    private static double logAddExp(double one, double other) {
        return Math.max(one, other) + Math.log1p(Math.exp(-Math.abs(one - other)));
    }

    /** Returns a vector's length; throws NON_FINITE where it has none. */
    private static double length(double[] vector) {
        double length = Math.sqrt(dot(vector, vector));
        if (!(length > 0 && length <= Double.MAX_VALUE)) {
            throw new MienException(ErrorCode.NON_FINITE, "a class vector has no direction; leave the round");
        }
        return length;
    }

    private static double dot(double[] one, double[] other) {
        double sum = 0;
        for (int d = 0; d < one.length; d++) {
            sum += one[d] * other[d];
        }
        return sum;
    }

    private static double[] exact(float[] row) {
        double[] exact = new double[row.length];
        for (int d = 0; d < row.length; d++) {
            exact[d] = row[d];
        }
        return exact;
    }
}
