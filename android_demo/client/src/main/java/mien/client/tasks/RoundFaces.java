package mien.client.tasks;

import java.util.Map;
import mien.client.train.Tensor;

/** What a round trains on: crops as the model takes them, whose they are, and what earlier rounds kept. */
public final class RoundFaces {
    public final byte[][] crops;
    /** The number of each crop's identity, from 0 on. */
    final int[] labels;
    /** By the method's names; of several people one row each, in the order of their numbers. */
    final Map<String, Tensor> state;

    /** Holds crops as the model takes them, whose they are by number from 0, and what training keeps of them. */
    public RoundFaces(byte[][] crops, int[] labels, Map<String, Tensor> state) {
        this.crops = crops;
        this.labels = labels;
        this.state = state;
    }

    int numPeople() {
        return count(labels);
    }

    /** Returns how many classes there are, which labels number from 0 on. */
    static int count(int[] labels) {
        int most = 0;
        for (int label : labels) {
            most = Math.max(most, label);
        }
        return most + 1;
    }
}
