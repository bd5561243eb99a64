package mien.client.train;

import java.util.Map;

/** What local training made: the part's values, the private tensors, the loss over all crops before and after. */
public final class Trained {
    public final float[] values;
    public final Map<String, Tensor> privateTensors;
    public final double lossBefore;
    public final double lossAfter;
    public final int numSteps;

    /** The momentum of the private tensors after the last step. */
    public final Map<String, Tensor> velocity;

    Trained(
            float[] values,
            Map<String, Tensor> privateTensors,
            Map<String, Tensor> velocity,
            double lossBefore,
            double lossAfter,
            int numSteps) {
        this.values = values;
        this.privateTensors = privateTensors;
        this.velocity = velocity;
        this.lossBefore = lossBefore;
        this.lossAfter = lossAfter;
        this.numSteps = numSteps;
    }
}
