package mien.client.model;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;

/** The graphs of one architecture in a folder, each checked against its hash when it is read; they hold no parameters. */
public final class Graphs implements GraphSource {
    public static final String LIST = "graphs.json";

    /** One graph: what it computes, where the network is cut, what it trains, with which objective. */
    private static final class Graph {
        final String file;
        final String kind;
        final String sha256;
        final String stage;
        final List<String> part;
        final String form;

        Graph(Fields fields) {
            file = fields.text("file");
            kind = fields.text("kind");
            sha256 = fields.text("sha256");
            stage = fields.text("stage", "");
            part = fields.texts("part");
            form = fields.text("form", "");
        }
    }

    private final Folder folder;
    private final List<Graph> graphs = new ArrayList<>();

    /** Takes the graphs in a folder; throws NOT_FOUND where there are none, LAYOUT_MISMATCH for another model's. */
    public Graphs(Folder folder, ParameterLayout layout) {
        this.folder = folder;
        byte[] list = folder.read(LIST);
        if (list == null) {
            throw new MienException(
                    ErrorCode.NOT_FOUND, "there are no graphs for this model; releases that phones train bring them");
        }
        Fields fields = Json.object(list, "the list of graphs");
        if (!fields.text("layout_sha256").equals(layout.sha256)) {
            throw new MienException(ErrorCode.LAYOUT_MISMATCH, "the graphs are for another model; fetch them again");
        }
        for (Fields each : fields.objects("graphs")) {
            Graph graph = new Graph(each);
            if (graph.file.endsWith(".onnx")) {
                graphs.add(graph);
            }
        }
    }

    @Override
    public boolean holds(String kind, String stage) {
        return find(kind, stage, Collections.<String>emptyList(), "") != null;
    }

    @Override
    public byte[] read(String kind, String stage, List<String> part, String form) {
        Graph graph = find(kind, stage, part, form);
        if (graph == null) {
            throw new MienException(
                    ErrorCode.NOT_FOUND,
                    "no graph for " + (kind + " " + stage + " " + form).trim() + "; the release lacks it, tell the operator");
        }
        // One that came with a release is named by its hash.
        byte[] data = Bytes.isSha256(graph.sha256) ? folder.read(graph.sha256) : null;
        data = data == null && graph.file.matches("[A-Za-z0-9][A-Za-z0-9._-]*") ? folder.read(graph.file) : data;
        if (data == null || !Bytes.hex(Bytes.sha256(data)).equals(graph.sha256)) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "a graph is missing, damaged or was changed; fetch the release again");
        }
        return data;
    }

    private Graph find(String kind, String stage, List<String> part, String form) {
        for (Graph graph : graphs) {
            if (graph.kind.equals(kind)
                    && graph.stage.equals(stage)
                    && graph.part.equals(part)
                    && graph.form.equals(form)) {
                return graph;
            }
        }
        return null;
    }
}
