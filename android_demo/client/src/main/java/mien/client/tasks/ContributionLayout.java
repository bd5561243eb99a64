package mien.client.tasks;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.ParameterPart;
import mien.client.secagg.Addends;
import mien.client.train.Trained;
import mien.client.wire.Bytes;
import mien.client.wire.Json;

/**
 * What a phone sends of a round: count 1, weight w, the method's own lanes. Those of averaging are w loss before, w loss
 * after, w (theta_i - theta).
 *
 * <p>Numbers of one element become the metrics of a private sum, the others its update. Nothing is
 * ever shown in clear.
 */
public final class ContributionLayout {
    /** Elements of the first two lanes, which every contribution has. */
    private static final int HEAD = 2;

    public final int size;
    public final String sha256;

    /** How many numbers are a change of the model; 0 where nothing is trained. */
    public final int numParameters;

    /** Elements of each lane behind the first two, in order. */
    private final int[] sizes;

    private final List<Addends.Block> blocks = new ArrayList<>();

    /** The lanes of averaging. */
    public ContributionLayout(ParameterPart part) {
        this(part, Collections.<String, Integer>emptyMap());
    }

    /** The lanes of averaging, and behind them others by their sizes. */
    ContributionLayout(ParameterPart part, Map<String, Integer> beside) {
        this(averaging(part, beside), part.size);
    }

    /**
     * The lanes of averaging, and behind them others by their sizes. Each of these has that L2 clip of its own, but for
     * those of one element; 0: none has.
     */
    ContributionLayout(ParameterPart part, Map<String, Integer> beside, double clip) {
        this(part, beside);
        int start = part.size;
        for (int lane : beside.values()) {
            if (clip > 0 && lane > 1) {
                blocks.add(new Addends.Block(start, start + lane, clip));
            }
            start += lane > 1 ? lane : 0; // one element is a metric
        }
    }

    /** Lanes by their sizes, in order; none is a change of the model. */
    ContributionLayout(Map<String, Integer> lanes) {
        this(lanes, 0);
    }

    private static Map<String, Integer> averaging(ParameterPart part, Map<String, Integer> beside) {
        Map<String, Integer> lanes = new LinkedHashMap<>();
        lanes.put("loss_before", 1);
        lanes.put("loss_after", 1);
        lanes.put("delta", part.size);
        lanes.putAll(beside);
        return lanes;
    }

    /** Lanes by their sizes, in order, which hold the change of so many of the model's numbers in their own way. */
    ContributionLayout(Map<String, Integer> lanes, int numParameters) {
        this.numParameters = numParameters;
        List<Object> named = new ArrayList<>();
        for (String name : new String[] {"count", "weight"}) {
            named.add(Arrays.<Object>asList(name, 1));
        }
        int elements = HEAD;
        for (Map.Entry<String, Integer> each : lanes.entrySet()) {
            named.add(Arrays.<Object>asList(each.getKey(), each.getValue()));
            elements += each.getValue();
        }
        sizes = lanes.values().stream().mapToInt(size -> size).toArray();
        size = elements;
        List<Object> both = Arrays.<Object>asList(named, Collections.emptyList());
        sha256 = Bytes.hex(Bytes.sha256(Bytes.utf8(Json.write(both))));
    }

    /** Returns how many elements the update of a private sum has. */
    public int updateSize() {
        return size - HEAD - numMetrics();
    }

    /** Returns the L2 norm of a whole update: that of a task's clip, and beside it those of lanes that have their own. */
    double clip(double own) {
        double squares = own * own;
        for (Addends.Block block : blocks) {
            squares += block.clip * block.clip;
        }
        return blocks.isEmpty() ? own : Math.sqrt(squares);
    }

    /** Returns how many metrics a private sum carries beside the update. */
    public int numMetrics() {
        return (int) Arrays.stream(sizes).filter(lane -> lane == 1).count();
    }

    /** Returns the contribution of what training made of {@code before}, with {@code beside} behind it, which has no weight. */
    byte[] pack(int weight, Trained trained, float[] before, float... beside) {
        float[] delta = new float[before.length];
        for (int i = 0; i < delta.length; i++) {
            delta[i] = trained.values[i] - before[i];
        }
        return pack(weight, trained.lossBefore, trained.lossAfter, delta, beside);
    }

    /** Returns a contribution's bytes; throws NON_FINITE where it holds NaN or infinity. */
    public byte[] pack(int weight, double lossBefore, double lossAfter, float[] delta, float... beside) {
        float[] vector = new float[size];
        vector[0] = 1;
        vector[1] = weight;
        vector[2] = (float) (weight * (double) (float) lossBefore);
        vector[3] = (float) (weight * (double) (float) lossAfter);
        for (int i = 0; i < delta.length; i++) {
            vector[HEAD + 2 + i] = weight * delta[i];
        }
        System.arraycopy(beside, 0, vector, HEAD + 2 + delta.length, beside.length);
        return bytes(vector);
    }

    /** Returns a contribution's bytes of all lanes behind the first two, where its weight is 1; throws as the other. */
    byte[] pack(float[] lanes) {
        float[] vector = new float[size];
        vector[0] = 1;
        vector[1] = 1;
        System.arraycopy(lanes, 0, vector, HEAD, lanes.length);
        return bytes(vector);
    }

    private static byte[] bytes(float[] vector) {
        if (!Bytes.isFinite(vector)) {
            throw new MienException(
                    ErrorCode.NON_FINITE, "the update holds NaN or infinity; the device leaves the round");
        }
        return Bytes.littleEndian(vector);
    }

    /** Returns a contribution divided by its weight, which the rounding multiplies in again exactly. */
    public Addends addends(byte[] contribution) {
        float[] vector = Bytes.floats(contribution);
        if (vector.length != size || vector[0] != 1 || vector[1] < 1 || vector[1] != (int) vector[1]) {
            throw new MienException(
                    ErrorCode.NON_FINITE, "a contribution counts 1 and weighs a whole number of images; leave the round");
        }
        float[] update = new float[updateSize()];
        double[] metrics = new double[numMetrics()];
        double weight = vector[1];
        int from = HEAD;
        int to = 0;
        int metric = 0;
        for (int lane : sizes) {
            for (int i = 0; lane > 1 && i < lane; i++) {
                update[to++] = vector[from + i] / vector[1];
            }
            if (lane == 1) {
                metrics[metric++] = vector[from] / weight;
            }
            from += lane;
        }
        return new Addends((int) weight, update, metrics, blocks);
    }
}
