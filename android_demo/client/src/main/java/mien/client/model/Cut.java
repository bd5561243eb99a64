package mien.client.model;

import java.util.ArrayList;
import java.util.List;

/** A model cut before the first trained stage: what lies before it is computed once for each picture. */
public final class Cut {
    /** The first trained stage. */
    public final String stage;
    /** Tensors before the cut; empty where the first stage of all is trained. */
    public final List<String> trunk = new ArrayList<>();
    /** Tensors from the cut on. */
    public final List<String> tail = new ArrayList<>();

    /** Takes the part whose values are wanted, wherever they lie among all parameters. */
    public Cut(ParameterPart part) {
        List<String> stages = new ArrayList<>();
        for (String name : part.layout.entries.keySet()) {
            if (!stages.contains(stageOf(name))) {
                stages.add(stageOf(name));
            }
        }
        int first = stages.size();
        for (String name : part.names) {
            first = Math.min(first, stages.indexOf(stageOf(name)));
        }
        stage = stages.get(first);
        for (String name : part.layout.entries.keySet()) {
            (stages.indexOf(stageOf(name)) < first ? trunk : tail).add(name);
        }
    }

    private static String stageOf(String name) {
        int at = name.indexOf('.');
        return at < 0 ? name : name.substring(0, at);
    }
}
