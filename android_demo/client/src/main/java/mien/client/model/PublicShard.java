package mien.client.model;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Safetensors;

/** Aligned crops of public (consented or synthetic) people, with labels 0 ... K - 1. */
public final class PublicShard {
    public final byte[][] crops;
    public final int[] labels;
    public final int numIdentities;

    private PublicShard(byte[][] crops, int[] labels, int numIdentities) {
        this.crops = crops;
        this.labels = labels;
        this.numIdentities = numIdentities;
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
        byte[][] crops = new byte[(int) shape[0]][];
        long[] labels = new long[crops.length];
        ByteBuffer given = ByteBuffer.wrap(numbers.data).order(ByteOrder.LITTLE_ENDIAN);
        TreeMap<Long, Integer> order = new TreeMap<>();
        for (int i = 0; i < crops.length; i++) {
            crops[i] = Arrays.copyOfRange(pixels.data, i * input.cropBytes(), (i + 1) * input.cropBytes());
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
        return new PublicShard(crops, numbered, next);
    }
}
