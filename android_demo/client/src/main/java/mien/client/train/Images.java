package mien.client.train;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import mien.client.model.Cut;
import mien.client.model.FaceInput;

/** One device's crops as the trained tail sees them: what the frozen trunk makes of each is computed once. */
final class Images {
    private static final int TAIL_BATCH = 32;
    private static final int WHOLE_BATCH = 4;

    private final Engine engine;
    private final Cut cut;
    private final Map<String, Tensor> parameters;
    private final FaceInput input;
    private final byte[][] crops;
    private final Map<Integer, Tensor> features = new HashMap<>();

    Images(Engine engine, Cut cut, Map<String, Tensor> parameters, FaceInput input, byte[][] crops) {
        this.engine = engine;
        this.cut = cut;
        this.parameters = parameters;
        this.input = input;
        this.crops = crops;
    }

    int size() {
        return crops.length;
    }

    /** Returns what enters the tail for some crops, mirrored where asked. */
    Tensor batch(int[] indices, boolean[] mirrored) {
        if (cut.trunk.isEmpty()) {
            return pixels(indices, mirrored);
        }
        float[] joined = new float[0];
        long[] shape = new long[0];
        for (int i = 0; i < indices.length; i++) {
            Tensor one = feature(indices[i], mirrored[i]);
            if (i == 0) {
                joined = new float[indices.length * one.values().length];
                shape = one.shape.clone();
                shape[0] = indices.length;
            }
            System.arraycopy(one.values(), 0, joined, i * one.values().length, one.values().length);
        }
        return new Tensor(joined, shape);
    }

    private Tensor feature(int index, boolean mirrored) {
        int key = 2 * index + (mirrored ? 1 : 0);
        Tensor known = features.get(key);
        if (known == null) {
            Map<String, Tensor> feed = new HashMap<>(parameters);
            feed.put("x", pixels(new int[] {index}, new boolean[] {mirrored}));
            known = engine.run("trunk", cut.stage, Arrays.<String>asList(), "", feed).get("features");
            features.put(key, known);
        }
        return known;
    }

    private Tensor pixels(int[] indices, boolean[] mirrored) {
        float[] pixels = new float[indices.length * input.cropBytes()];
        for (int i = 0; i < indices.length; i++) {
            input.write(crops[indices[i]], mirrored[i], pixels, i * input.cropBytes());
        }
        return new Tensor(pixels, indices.length, 3, input.height, input.width);
    }

    /** Returns the embeddings (N, D) of all crops as they are, not normalised, with the parameters that are given. */
    Tensor embedAll(Map<String, Tensor> given) {
        boolean isWhole = cut.trunk.isEmpty();
        int most = isWhole ? WHOLE_BATCH : TAIL_BATCH;
        float[] all = new float[crops.length * input.dim];
        for (int start = 0; start < crops.length; start += most) {
            int[] indices = new int[Math.min(most, crops.length - start)];
            for (int i = 0; i < indices.length; i++) {
                indices[i] = start + i;
            }
            Map<String, Tensor> feed = new HashMap<>(given);
            feed.put("x", batch(indices, new boolean[indices.length]));
            String kind = isWhole ? "embed" : "tail";
            float[] some =
                    engine.run(kind, isWhole ? "" : cut.stage, Arrays.<String>asList(), "", feed)
                            .get("embeddings")
                            .values();
            System.arraycopy(some, 0, all, start * input.dim, some.length);
        }
        return new Tensor(all, crops.length, input.dim);
    }
}
