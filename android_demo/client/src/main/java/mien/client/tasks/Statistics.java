package mien.client.tasks;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.ParameterLayout;
import mien.client.model.ParameterPart;
import mien.client.model.Parameters;
import mien.client.model.PublicShard;
import mien.client.train.Generator;
import mien.client.train.Tensor;
import mien.client.wire.Fields;

/**
 * Summed statistics' device half: the model embeds the pictures, and moments of what comes out are added up; nothing is
 * trained, and nothing kept.
 *
 * <p>The source of the moments and their bounds is {@code mien/methods/statistics.py}.
 */
final class Statistics extends DeviceHalf {
    /** What phones of a mixture are told, all alike: weights and a bias of the log odds that a person is of theirs. */
    static final String ODDS = "mixture_odds";

    /** So many phones of a mixture hide one of them at least as well as one that counts whole, whatever odds they are told. */
    static final int PHONES_AS_ONE = 10;

    /** What a person of a mixture counts at least. */
    private static final double LEAST_WEIGHT = 1.0 / PHONES_AS_ONE;

    private static final String WEIGHT = "adapter.weight";
    private static final String BIAS = "adapter.bias";
    private static final String GATE_WEIGHT = "adapter.gate_weight";
    private static final String GATE_BIAS = "adapter.gate_bias";
    private static final String LEVEL = "adapter.level";
    /** The adapter's tensors, without a gate and with one. */
    private static final List<String> PLAIN = Arrays.asList(WEIGHT, BIAS);

    private static final List<String> GATED = Arrays.asList(WEIGHT, BIAS, GATE_WEIGHT, GATE_BIAS, LEVEL);
    /** Bias and level with which a gate leaves the recogniser as it is. */
    private static final float CLOSED = -30;

    private static final float NO_LEVEL = -1;
    private static final int COUNTS = 3;
    /** The most that three counts and three blocks, none longer than 1, can be in length. */
    private static final double NORM_BOUND = Math.sqrt(6);

    Statistics() {
        super("statistics");
    }

    @Override
    boolean trains() {
        return false;
    }

    @Override
    boolean addsUp() {
        return true;
    }

    @Override
    List<String> told(TaskSpec task) {
        return isMixture(task) ? Collections.singletonList(ODDS) : Collections.<String>emptyList();
    }

    @Override
    int phonesAsOne(TaskSpec task) {
        return isMixture(task) ? PHONES_AS_ONE : 1;
    }

    @Override
    void check(TaskSpec task) {
        Fields options = task.options;
        String form = options.text("form", "wccn");
        boolean isKnown = Arrays.asList("centre", "wccn", "lda", "plda", "auto").contains(form);
        Methods.require(isKnown, task, "options.form = " + form);
        range(task, "options.shrinkage", options.real("shrinkage", 0.5), 0, 1);
        range(task, "options.rank", options.number("rank", 32), 1, Integer.MAX_VALUE);
        long minPeople = options.number("min_people", 100);
        range(task, "options.min_people", minPeople, 3, 1e9);
        range(task, "options.max_people", options.number("max_people", 4), 1, 64);
        range(task, "options.longest", longest(task), Double.MIN_VALUE, 1e6);
        range(task, "options.within_clip", withinClip(task), Double.MIN_VALUE, 1);
        checkPrivacy(task);
        if (isMixture(task)) {
            checkMixture(task);
        }
        // A mixture forgets its first cohort.
        int cohorts = isMixture(task) ? task.rounds - 1 : task.rounds;
        if ((double) cohorts * task.largestSum * maxPeople(task) < minPeople) {
            throw refused(task, "would open sums of too few people to be of use");
        }
    }

    /** Throws CONFIG for a task whose sum would tell too much of this phone, or would cut what it adds. */
    private static void checkPrivacy(TaskSpec task) {
        if (task.profile == null) {
            throw refused(task, "takes plain sums: the coordinator would see the templates of this phone's people");
        }
        if (task.groups > 1) {
            throw refused(task, "deals phones into groups, whose smaller sums tell more of each");
        }
        boolean isSaid = task.reveals.equals(Collections.singleton(Agreement.CLASS_MOMENT));
        if (!isSaid && !(task.reveals.isEmpty() && task.dp.isOn())) {
            throw refused(
                    task,
                    "shows the coordinator the sum of people's second moments and does not say exactly that"
                            + " (privacy.reveals = [\"class_moment\"]), or promise differential privacy");
        }
        if (task.dp.isOn() && task.dp.maxParticipations != 1) {
            throw refused(task, "lets this phone into several sums, and its statistics are in one");
        }
        boolean isNoisedByLength = !task.dp.isOn() || (task.l2Clip == 1 && !task.dp.isAdaptive());
        if (!isNoisedByLength) {
            throw refused(task, "does not clip to the 1 that statistics are long under differential privacy");
        }
        if (!(task.coordinateClip >= 1 && task.l2Clip >= (task.dp.isOn() ? 1 : NORM_BOUND))) {
            throw refused(task, "clips updates below what statistics are long");
        }
    }

    /**
     * Returns the factors of the four lanes: under differential privacy what a phone adds is 1 long at most, of which
     * each lane has a share that suits the form of the map, and what the form does not need has none.
     */
    private static double[] scales(TaskSpec task) {
        if (!task.dp.isOn()) {
            return new double[] {1, 1, 1, 1};
        }
        String form = task.options.text("form", "wccn");
        double[] shares = form.equals("centre")
                ? new double[] {0.02, 0.98, 0, 0}
                : form.equals("wccn") ? new double[] {0.02, 0.08, 0, 0.9} : new double[] {0.02, 0.08, 0.45, 0.45};
        return new double[] {
            Math.sqrt(shares[0] / 3), Math.sqrt(shares[1]), Math.sqrt(shares[2]), Math.sqrt(shares[3])
        };
    }

    private static void range(TaskSpec task, String option, double value, double least, double most) {
        if (!(value >= least && value <= most)) {
            throw refused(task, "has " + option + " = " + value + ", which cannot be");
        }
    }

    private static MienException refused(TaskSpec task, String why) {
        return new MienException(
                ErrorCode.CONFIG, "task '" + task.name + "' " + why + "; this device stays out of it, tell the operator");
    }

    /** Throws CONFIG for a mixture of which no cohort is told of another. */
    private static void checkMixture(TaskSpec task) {
        if (task.rounds < 2) {
            throw refused(task, "weighs people by what earlier cohorts tell, and has one cohort");
        }
    }

    /** Returns whether phones hold people of the model's own population too, and each counts by the odds that they are not. */
    static boolean isMixture(TaskSpec task) {
        return task.options.has("mixture") && task.options.flag("mixture");
    }

    private static int maxPeople(TaskSpec task) {
        return (int) task.options.number("max_people", 4);
    }

    private static double longest(TaskSpec task) {
        return task.options.real("longest", 20);
    }

    /** Returns the unit of the scatter within people, and the length to which it is cut. */
    private static double withinClip(TaskSpec task) {
        return task.options.real("within_clip", 0.25);
    }

    /**
     * Returns the lanes; throws CONFIG for a task that trains another part than the adapter, for features would not stay,
     * for a gate whose sums do not tell populations apart, and for a map of more directions than features have.
     */
    @Override
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        ParameterLayout.Entry bias = part.layout.entries.get(BIAS);
        boolean isGated = part.names.equals(GATED);
        boolean isAdapter = bias != null && (isGated || part.names.equals(PLAIN));
        int own = isAdapter ? bias.size : 0;
        int size = own * (own + 1) + (isGated ? own + 2 : 0);
        if (!isAdapter || dim != (isGated ? 2 * own + 1 : own) || part.size != size) {
            throw refused(task, "sums statistics of a model whose features do not stay, for it trains more than an adapter");
        }
        if (isMixture(task) && !isGated) {
            throw refused(task, "tells phones' people from those of the model's own, which takes a model with a gate");
        }
        if (isGated && scales(task)[2] == 0) {
            throw refused(task, "tells populations apart by second moments, which its form does not send");
        }
        long rank = task.options.number("rank", 32);
        if (task.options.text("form", "wccn").equals("lda") && rank >= own) {
            throw refused(task, "keeps " + rank + " directions of features that have " + own);
        }
        Map<String, Integer> lanes = new LinkedHashMap<>();
        lanes.put("people", COUNTS);
        lanes.put("mean", own);
        lanes.put("second", packedSize(own));
        lanes.put("within", packedSize(own));
        return new ContributionLayout(lanes);
    }

    private static int packedSize(int dim) {
        return dim * (dim + 1) / 2;
    }

    @Override
    Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard) {
        float[][] embedded = job.features(frozen(job.parameterLayout(), job.parameters()), faces.crops);
        int dim = job.parameterLayout().entries.get(BIAS).size;
        float[] odds = isMixture(job.task) ? job.told.vector(ODDS, dim + 1) : null;
        byte[] contribution = contribution(job.layout, job.task, own(embedded, dim), faces.labels, odds, job.seed);
        return new Methods.Output(contribution, Collections.<String, Tensor>emptyMap());
    }

    /** Returns the recogniser's own features: all numbers of an embedding, or the second {@code dim} behind a gate. */
    static float[][] own(float[][] embedded, int dim) {
        float[][] own = new float[embedded.length][];
        for (int i = 0; i < own.length; i++) {
            int start = embedded[i].length == dim ? 0 : dim;
            own[i] = Arrays.copyOfRange(embedded[i], start, start + dim);
        }
        return own;
    }

    /**
     * Returns the model whose adapter does nothing: sums of its features are the same whatever was adapted before. A
     * gate is closed.
     */
    static Parameters frozen(ParameterLayout layout, Parameters parameters) {
        ParameterPart adapter = layout.part(layout.entries.containsKey(GATE_WEIGHT) ? GATED : PLAIN);
        int dim = layout.entries.get(BIAS).size;
        float[] neutral = new float[adapter.size];
        int at = 0;
        for (String name : adapter.names) {
            switch (name) {
                case WEIGHT:
                    for (int d = 0; d < dim; d++) {
                        neutral[at + d * (dim + 1)] = 1;
                    }
                    break;
                case GATE_BIAS:
                    neutral[at] = CLOSED;
                    break;
                case LEVEL:
                    neutral[at] = NO_LEVEL;
                    break;
                default: // 0
            }
            at += layout.entries.get(name).size;
        }
        return parameters.with(adapter, neutral);
    }

    /**
     * Returns a phone's addends of features (N, D), whose people {@code labels} number; of more people than the task
     * counts, some are drawn. With {@code odds} each person adds as much less as they are unlikely to be of phones' own
     * population, and a tenth at least; null counts everybody whole.
     * Throws CONFIG where features are longer than the task says.
     */
    static byte[] contribution(
            ContributionLayout layout, TaskSpec task, float[][] features, int[] labels, float[] odds, long seed) {
        if (features.length == 0) {
            throw new MienException(ErrorCode.CONFIG, "there are no images to sum statistics of; enrol first");
        }
        double[][] unit = unit(features, longest(task));
        int maxPeople = maxPeople(task);
        double[] sums = new double[layout.updateSize()];
        for (int person : chosen(labels, maxPeople, seed)) {
            List<double[]> own = new ArrayList<>();
            for (int i = 0; i < labels.length; i++) {
                if (labels[i] == person) {
                    own.add(unit[i]);
                }
            }
            add(sums, own, odds, withinClip(task));
        }
        double[] scales = scales(task);
        float[] update = new float[sums.length];
        int dim = features[0].length;
        int[] ends = {COUNTS, COUNTS + dim, COUNTS + dim + packedSize(dim), sums.length};
        for (int i = 0, lane = 0; i < update.length; i++) {
            lane += i == ends[lane] ? 1 : 0;
            update[i] = (float) (scales[lane] * sums[i] / maxPeople);
        }
        return layout.pack(update);
    }

    /** Returns features divided by {@code longest}, and cut to length 1 where they are longer. */
    private static double[][] unit(float[][] features, double longest) {
        double[] lengths = new double[features.length];
        for (int i = 0; i < lengths.length; i++) {
            double squares = 0;
            for (float value : features[i]) {
                squares += (double) value * value;
            }
            lengths[i] = Math.sqrt(squares);
        }
        double median = median(lengths);
        if (median > longest) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    String.format(
                            Locale.ROOT,
                            "this model's features are %.3g long, and options.longest is %.3g: the phone leaves the round,"
                                    + " tell the operator",
                            median, longest));
        }
        double[][] unit = new double[features.length][features[0].length];
        for (int i = 0; i < unit.length; i++) {
            for (int d = 0; d < unit[i].length; d++) {
                unit[i][d] = features[i][d] / Math.max(lengths[i], longest);
            }
        }
        return unit;
    }

    private static double median(double[] values) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        int half = sorted.length / 2;
        return sorted.length % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    }

    /** Returns whom a phone counts: all people whom {@code labels} number, or {@code most} drawn of them. */
    private static int[] chosen(int[] labels, int most, long seed) {
        int[] people = Arrays.stream(labels).distinct().sorted().toArray();
        if (people.length <= most) {
            return people;
        }
        int[] drawn = new Generator(seed).choice(people.length, most);
        return Arrays.stream(drawn).map(place -> people[place]).toArray();
    }

    /**
     * Returns the share in which a person with this mean feature is of phones' population. Log odds are linear, so the mean
     * feature's are the mean over the pictures: more pictures of one face are no further evidence, for they are alike.
     */
    private static double responsibility(float[] odds, double[] mean) {
        double logOdds = odds[mean.length];
        for (int d = 0; d < mean.length; d++) {
            logOdds += odds[d] * mean[d];
        }
        return 1 / (1 + Math.exp(-logOdds));
    }

    /** Adds what one person's features add; one picture counts for the mean, not for the scatter. */
    private static void add(double[] sums, List<double[]> features, float[] odds, double withinClip) {
        int count = features.size();
        int dim = features.get(0).length;
        double[] mean = new double[dim];
        for (double[] each : features) {
            for (int d = 0; d < dim; d++) {
                mean[d] += each[d] / count;
            }
        }
        double share = odds == null ? 1 : LEAST_WEIGHT + (1 - LEAST_WEIGHT) * responsibility(odds, mean);
        sums[0] += share;
        sums[1] += count > 1 ? share : 0;
        sums[2] += share / count;
        double[] within = new double[packedSize(dim)];
        double squares = 0;
        int at = 0;
        for (int row = 0; row < dim; row++) {
            sums[COUNTS + row] += share * mean[row];
            for (int column = row; column < dim; column++, at++) {
                double factor = row == column ? 1 : Math.sqrt(2);
                sums[COUNTS + dim + at] += share * factor * mean[row] * mean[column];
                for (double[] each : features) {
                    within[at] += (each[row] - mean[row]) * (each[column] - mean[column]);
                }
                within[at] *= factor / (Math.max(1, count - 1) * withinClip);
                squares += within[at] * within[at];
            }
        }
        if (count == 1) {
            return;
        }
        double over = Math.max(1, Math.sqrt(squares));
        for (int i = 0; i < within.length; i++) {
            sums[COUNTS + dim + within.length + i] += share * within[i] / over;
        }
    }
}
