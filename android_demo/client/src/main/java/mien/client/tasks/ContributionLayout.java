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
    public final int size;
    public final String sha256;

    /** How many numbers are a change of the model; 0 where nothing is trained. */
    public final int numParameters;

    private final int numMetrics;

    /** The lanes of averaging. */
    public ContributionLayout(ParameterPart part) {
        this(part, Collections.<String, Integer>emptyMap());
    }

    /** The lanes of averaging, and behind them others by their sizes. */
    ContributionLayout(ParameterPart part, Map<String, Integer> beside) {
        this(Arrays.asList("loss_before", "loss_after"), updates(part, beside), part.size);
    }

    /** {@code updates} are the sizes of the lanes of more than one element, in order; none is a change of the model. */
    ContributionLayout(List<String> metrics, Map<String, Integer> updates) {
        this(metrics, updates, 0);
    }

    private static Map<String, Integer> updates(ParameterPart part, Map<String, Integer> beside) {
        Map<String, Integer> updates = new LinkedHashMap<>();
        updates.put("delta", part.size);
        updates.putAll(beside);
        return updates;
    }

    private ContributionLayout(List<String> metrics, Map<String, Integer> updates, int numParameters) {
        this.numParameters = numParameters;
        List<Object> lanes = new ArrayList<>();
        for (String name : new String[] {"count", "weight"}) {
            lanes.add(Arrays.<Object>asList(name, 1));
        }
        for (String name : metrics) {
            lanes.add(Arrays.<Object>asList(name, 1));
        }
        int elements = lanes.size();
        for (Map.Entry<String, Integer> each : updates.entrySet()) {
            lanes.add(Arrays.<Object>asList(each.getKey(), each.getValue()));
            elements += each.getValue();
        }
        numMetrics = metrics.size();
        size = elements;
        List<Object> both = Arrays.<Object>asList(lanes, Collections.emptyList());
        sha256 = Bytes.hex(Bytes.sha256(Bytes.utf8(Json.write(both))));
    }

    private int head() {
        return 2 + numMetrics;
    }

    /** Returns how many elements the update of a private sum has. */
    public int updateSize() {
        return size - head();
    }

    /** Returns how many metrics a private sum carries beside the update. */
    public int numMetrics() {
        return numMetrics;
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
            vector[head() + i] = weight * delta[i];
        }
        System.arraycopy(beside, 0, vector, head() + delta.length, beside.length);
        return bytes(vector);
    }

    /** Returns a contribution's bytes where the method has no metrics and its weight is 1; throws as the other. */
    byte[] pack(float[] update) {
        float[] vector = new float[size];
        vector[0] = 1;
        vector[1] = 1;
        System.arraycopy(update, 0, vector, head(), updateSize());
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
        for (int i = 0; i < update.length; i++) {
            update[i] = vector[head() + i] / vector[1];
        }
        double weight = vector[1];
        double[] metrics = new double[numMetrics];
        for (int i = 0; i < metrics.length; i++) {
            metrics[i] = vector[2 + i] / weight;
        }
        return new Addends((int) weight, update, metrics);
    }
}
