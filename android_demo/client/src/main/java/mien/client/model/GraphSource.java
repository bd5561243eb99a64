package mien.client.model;

import java.util.List;

/** Where an engine's graphs come from. */
public interface GraphSource {
    /** Returns whether there is a graph of that kind and stage. */
    boolean holds(String kind, String stage);

    /** Returns a graph's bytes, ONNX; throws NOT_FOUND where there is none of that description. */
    byte[] read(String kind, String stage, List<String> part, String form);
}
