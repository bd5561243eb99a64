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

    /** Returns this part's elements of the full vector, end to end. */
    public float[] gather(float[] theta) {
        float[] values = new float[size];
        int at = 0;
        for (String name : names) {
            ParameterLayout.Entry entry = layout.entries.get(name);
            System.arraycopy(theta, entry.offset, values, at, entry.size);
            at += entry.size;
        }
        return values;
    }

    /** Returns the full vector with this part's elements in the place of its own. */
    public float[] scatter(float[] theta, float[] values) {
        float[] changed = theta.clone();
        int at = 0;
        for (String name : names) {
            ParameterLayout.Entry entry = layout.entries.get(name);
            System.arraycopy(values, at, changed, entry.offset, entry.size);
            at += entry.size;
        }
        return changed;
    }
}
