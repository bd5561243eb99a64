package mien.client.train;

import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OnnxValue;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.GraphSource;

/** Runs graphs with ONNX Runtime, one at a time; each is loaded when it is first used, also after {@link #close}. */
public final class OrtEngine implements Engine {
    private final OrtEnvironment environment = OrtEnvironment.getEnvironment();
    private final Map<String, OrtSession> sessions = new HashMap<>();
    private final GraphSource graphs;
    private final int threads;

    /** Runs graphs on so many threads; each is loaded when it is first needed. */
    public OrtEngine(GraphSource graphs, int threads) {
        this.graphs = graphs;
        this.threads = threads;
    }

    @Override
    public boolean holds(String kind, String stage) {
        return graphs.holds(kind, stage);
    }

    @Override
    public synchronized Map<String, Tensor> run(
            String kind, String stage, List<String> part, String form, Map<String, Tensor> feed) {
        Map<String, OnnxTensor> inputs = new LinkedHashMap<>();
        try {
            OrtSession session = session(kind, stage, part, form);
            for (String name : session.getInputNames()) {
                Tensor given = feed.get(name);
                if (given == null) {
                    throw new MienException(
                            ErrorCode.CONFIG, "the graph wants " + name + ", which this program does not give; upgrade it");
                }
                // In place where its memory is direct or mapped; ONNX Runtime copies what is on the heap.
                inputs.put(name, OnnxTensor.createTensor(environment, given.numbers.duplicate(), given.shape));
            }
            try (OrtSession.Result result = session.run(inputs)) {
                return copied(result);
            }
        } catch (OrtException error) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "ONNX Runtime refused a graph (" + error.getCode() + "): the tensors do not fit it, or the release is"
                            + " for another program; tell the operator");
        } finally {
            for (OnnxTensor input : inputs.values()) {
                input.close();
            }
        }
    }

    private static Map<String, Tensor> copied(OrtSession.Result result) {
        Map<String, Tensor> outputs = new HashMap<>();
        for (Map.Entry<String, OnnxValue> each : result) {
            OnnxTensor tensor = (OnnxTensor) each.getValue();
            outputs.put(each.getKey(), new Tensor(tensor.getFloatBuffer(), tensor.getInfo().getShape()));
        }
        return outputs;
    }

    private OrtSession session(String kind, String stage, List<String> part, String form) throws OrtException {
        String key = kind + "/" + stage + "/" + form + "/" + part;
        OrtSession session = sessions.get(key);
        if (session == null) {
            byte[] graph = graphs.read(kind, stage, part, form);
            try (OrtSession.SessionOptions options = options(kind)) {
                session = environment.createSession(graph, options);
            }
            sessions.put(key, session);
        }
        return session;
    }

    private OrtSession.SessionOptions options(String kind) throws OrtException {
        boolean trains = kind.equals("train");
        OrtSession.SessionOptions options = new OrtSession.SessionOptions();
        options.setIntraOpNumThreads(threads);
        options.setInterOpNumThreads(1);
        // Steps ask for the same memory again and again; inference gives it back.
        options.setCPUArenaAllocator(trains);
        // Threads that wait use no battery.
        options.addConfigEntry("session.intra_op.allow_spinning", "0");
        if (trains) {
            // Optimisers join equal values of both passes, and so keep those of the first alive for the second.
            options.setOptimizationLevel(OrtSession.SessionOptions.OptLevel.NO_OPT);
            options.setMemoryPatternOptimization(false);
        }
        return options;
    }

    @Override
    public synchronized void close() {
        for (OrtSession session : sessions.values()) {
            try {
                session.close();
            } catch (OrtException error) {
                throw new IllegalStateException("a session that was open closes", error);
            }
        }
        sessions.clear();
    }
}
