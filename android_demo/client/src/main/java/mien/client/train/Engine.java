package mien.client.train;

import java.util.List;
import java.util.Map;

/** What runs a graph: named tensors in, named tensors out. {@code feed} may hold more than its inputs. */
public interface Engine extends AutoCloseable {
    /** Returns the outputs of the graph of that kind, stage, part and form. */
    Map<String, Tensor> run(String kind, String stage, List<String> part, String form, Map<String, Tensor> feed);

    /** Returns whether there is a graph of that kind and stage. */
    boolean holds(String kind, String stage);

    @Override
    void close();
}
