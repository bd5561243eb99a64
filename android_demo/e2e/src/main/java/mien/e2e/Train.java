package mien.e2e;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.model.Blob;
import mien.client.model.Graphs;
import mien.client.model.Manifest;
import mien.client.model.Model;
import mien.client.model.ModelStore;
import mien.client.store.Folder;
import mien.client.tasks.Practice;
import mien.client.train.GraphRuntime;
import mien.client.train.OrtEngine;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;

/**
 * Trains two rounds in a row on files and writes what would be sent, for tests that compare it with Python's.
 *
 * <pre>
 * Train FOLDER GRAPHS SEED: reads model_id, model.json, theta.f32, shard (optional), crops, labels, task.json, reply-0 and
 * reply-1 (optional); writes sent-0 and sent-1
 * </pre>
 */
public final class Train {
    private Train() {}

    public static void main(String[] arguments) throws IOException {
        Path folder = Paths.get(arguments[0]);
        ModelStore store = new ModelStore(new Folder(folder.resolve("store")));
        Model model = model(folder, store);
        OrtEngine engine = new OrtEngine(new Graphs(new Folder(Paths.get(arguments[1])), model.spec.layout), 1);
        GraphRuntime runtime = new GraphRuntime(model.spec, engine);
        byte[][] crops = Phone.crops(folder.resolve("crops"));
        int[] labels = new int[crops.length];
        byte[] given = Files.readAllBytes(folder.resolve("labels"));
        for (int i = 0; i < labels.length; i++) {
            labels[i] = given[i];
        }
        byte[] task = Files.readAllBytes(folder.resolve("task.json"));
        Map<String, Tensor> state = new LinkedHashMap<>();
        for (int round = 0; round < 2; round++) {
            long seed = Long.parseLong(arguments[2]) + round;
            Path told = folder.resolve("reply-" + round);
            byte[] reply = Files.exists(told) ? Files.readAllBytes(told) : new byte[0];
            byte[] sent = Practice.run(runtime, model, task, seed, crops, labels, store.loadShard(model), state, reply);
            Files.write(folder.resolve("sent-" + round), sent);
        }
        engine.close();
    }

    /** Returns the model in a folder, stored as a phone stores what it fetched; none of it passes over the heap here. */
    static Model model(Path folder, ModelStore store) throws IOException {
        byte[] spec = Files.readAllBytes(folder.resolve("model.json"));
        String modelId = Bytes.text(Files.readAllBytes(folder.resolve("model_id")));
        Blob theta = blob(folder, "theta.f32");
        Blob shard = Files.exists(folder.resolve("shard")) ? blob(folder, "shard") : null;
        return store.fetch(
                new Manifest(modelId, spec, theta, shard, new byte[0], new byte[0]),
                (blob, to, what) -> copy(folder.resolve(blob == theta ? "theta.f32" : "shard"), to.path(blob.sha256)));
    }

    private static Blob blob(Path folder, String name) {
        ByteBuffer data = new Folder(folder).map(name);
        return new Blob(Bytes.hex(Bytes.sha256(data)), data.remaining());
    }

    private static void copy(Path file, Path to) {
        try {
            Files.copy(file, to);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
