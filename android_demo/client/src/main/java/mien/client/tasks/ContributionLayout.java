package mien.client.tasks;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.ParameterPart;
import mien.client.secagg.Addends;
import mien.client.train.Trained;
import mien.client.wire.Bytes;
import mien.client.wire.Json;

/**
 * What a phone sends of a round of averaging: count 1, weight w, w loss before, w loss after, w (theta_i - theta).
 *
 * <p>Numbers of one element become the metrics of a private sum, the change of the parameters its update. Nothing is
 * ever shown in clear.
 */
public final class ContributionLayout {
    private static final int HEAD = 4;

    public final int size;
    public final String sha256;

    public ContributionLayout(ParameterPart part) {
        size = HEAD + part.size;
        List<Object> lanes = new ArrayList<>();
        for (String name : new String[] {"count", "weight", "loss_before", "loss_after"}) {
            lanes.add(Arrays.<Object>asList(name, 1));
        }
        lanes.add(Arrays.<Object>asList("delta", part.size));
        List<Object> both = Arrays.<Object>asList(lanes, Collections.emptyList());
        sha256 = Bytes.hex(Bytes.sha256(Bytes.utf8(Json.write(both))));
    }

    /** Returns how many elements the update of a private sum has. */
    public int updateSize() {
        return size - HEAD;
    }

    /** Returns how many metrics a private sum carries beside the update. */
    public int numMetrics() {
        return 2;
    }

    /** Returns the contribution of what training made of {@code before}. */
    public byte[] pack(int weight, Trained trained, float[] before) {
        float[] delta = new float[before.length];
        for (int i = 0; i < delta.length; i++) {
            delta[i] = trained.values[i] - before[i];
        }
        return pack(weight, trained.lossBefore, trained.lossAfter, delta);
    }

    /** Returns a contribution's bytes; throws NON_FINITE where it holds NaN or infinity. */
    public byte[] pack(int weight, double lossBefore, double lossAfter, float[] delta) {
        float[] vector = new float[size];
        vector[0] = 1;
        vector[1] = weight;
        vector[2] = (float) (weight * (double) (float) lossBefore);
        vector[3] = (float) (weight * (double) (float) lossAfter);
        for (int i = 0; i < delta.length; i++) {
            vector[HEAD + i] = weight * delta[i];
        }
        if (delta.length != updateSize() || !Bytes.isFinite(vector)) {
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
            update[i] = vector[HEAD + i] / vector[1];
        }
        double weight = vector[1];
        return new Addends((int) weight, update, new double[] {vector[2] / weight, vector[3] / weight});
    }
}
