package mien.client.model;

import java.nio.ByteBuffer;
import java.util.Map;
import java.util.TreeMap;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Safetensors;

/** Aligned crops of public (consented or synthetic) people, with labels 0 ... K - 1. */
public final class PublicShard {
    private final ByteBuffer pixels;
    private final int cropBytes;
    public final int[] labels;
    public final int numIdentities;

    private PublicShard(ByteBuffer pixels, int cropBytes, int[] labels, int numIdentities) {
        this.pixels = pixels;
        this.cropBytes = cropBytes;
        this.labels = labels;
        this.numIdentities = numIdentities;
    }

    /** Returns how many public crops there are. */
    public int numCrops() {
        return labels.length;
    }

    /** Returns the numbers of all crops. */
    public int[] everyCrop() {
        return Indices.upTo(labels.length);
    }

    /** Returns a copy of a crop; the others stay in their file. */
    public byte[] crop(int index) {
        byte[] crop = new byte[cropBytes];
        ByteBuffer from = pixels.duplicate();
        from.position(index * cropBytes);
        from.get(crop);
        return crop;
    }

    static PublicShard parse(Safetensors tensors, FaceInput input) {
        Safetensors.Tensor pixels = tensors.get("crops", "U8");
        Safetensors.Tensor numbers = tensors.get("labels", "I64");
        long[] shape = pixels.shape;
        boolean fits =
                shape.length == 4 && shape[1] == input.height && shape[2] == input.width && shape[3] == 3 && shape[0] > 0;
        if (!fits || numbers.shape.length != 1 || numbers.shape[0] != shape[0]) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the public faces do not fit the model's input; tell the operator");
        }
        long[] labels = new long[(int) shape[0]];
        ByteBuffer given = numbers.numbers();
        TreeMap<Long, Integer> order = new TreeMap<>();
        for (int i = 0; i < labels.length; i++) {
            labels[i] = given.getLong();
            order.put(labels[i], 0);
        }
        int next = 0;
        for (Map.Entry<Long, Integer> each : order.entrySet()) {
            each.setValue(next++);
        }
        int[] numbered = new int[labels.length];
        for (int i = 0; i < labels.length; i++) {
            numbered[i] = order.get(labels[i]);
        }
        return new PublicShard(pixels.data, input.cropBytes(), numbered, next);
    }
}
