package mien.client.model;

import java.util.List;

/** The tensors of a layout that a task trains and sends, in layout order. */
public final class ParameterPart {
    public final ParameterLayout layout;
    public final List<String> names;
    public final int size;

    ParameterPart(ParameterLayout layout, List<String> names) {
        this.layout = layout;
        this.names = names;
        int total = 0;
        for (String name : names) {
            total += layout.entries.get(name).size;
        }
        size = total;
    }
}
