package mien.client.vision;

import com.google.protobuf.CodedInputStream;
import com.google.protobuf.CodedOutputStream;
import com.google.protobuf.WireFormat;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.GraphSource;
import mien.client.wire.Bytes;

/**
 * YuNet's model file, changed as far as ONNX Runtime needs.
 *
 * <p>The file says that its picture is 640x640, while the network takes any whose sides are multiples of 32; and it gives
 * block sizes to vectors that have one scale, which ONNX Runtime refuses. Both are left out, and
 * what nothing uses, of which it would warn; no number is changed.
 */
final class YuNetGraph implements GraphSource {
    static final String SHA256 = "49f000ec501fef24739071fc7e68267d32209045b6822c0c72dce1da25726f10";
    static final String KIND = "detect";

    // Numbers of fields in onnx.proto3.
    private static final int MODEL_GRAPH = 7;
    private static final int GRAPH_NODE = 1;
    private static final int GRAPH_INITIALIZER = 5;
    private static final int GRAPH_INPUT = 11;
    private static final int GRAPH_OUTPUT = 12;
    private static final int GRAPH_VALUE_INFO = 13;
    private static final int NODE_INPUT = 1;
    private static final int NODE_OP_TYPE = 4;
    private static final int NODE_ATTRIBUTE = 5;
    private static final int TENSOR_DIMS = 1;
    private static final int TENSOR_NAME = 8;
    private static final int VALUE_TYPE = 2;
    private static final int TYPE_TENSOR = 1;
    private static final int TENSOR_TYPE_SHAPE = 2;

    private final byte[] graph;

    private YuNetGraph(byte[] graph) {
        this.graph = graph;
    }

    /** Takes the model file's bytes; throws CORRUPT_DATA for any other file. */
    static YuNetGraph of(byte[] file) {
        String found = Bytes.hex(Bytes.sha256(file));
        if (!found.equals(SHA256)) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "the face detector's file has sha256 " + found.substring(0, 12) + "..., expected "
                            + SHA256.substring(0, 12) + "...; install it again");
        }
        try {
            return new YuNetGraph(each(file, (field, value) -> field == MODEL_GRAPH ? graph(value) : value));
        } catch (IOException error) {
            throw new IllegalStateException("a file of a known hash can be read", error);
        }
    }

    @Override
    public boolean holds(String kind, String stage) {
        return kind.equals(KIND);
    }

    @Override
    public byte[] read(String kind, String stage, List<String> part, String form) {
        return graph;
    }

    private static byte[] graph(byte[] graph) throws IOException {
        Set<String> single = new HashSet<>();
        Set<String> used = new HashSet<>();
        each(graph, (field, value) -> {
            if (field == GRAPH_INITIALIZER && isSingle(value)) {
                single.add(texts(value, TENSOR_NAME)[0]);
            } else if (field == GRAPH_NODE) {
                used.addAll(Arrays.asList(texts(value, NODE_INPUT)));
            }
            return value;
        });
        return each(graph, (field, value) -> {
            switch (field) {
                case GRAPH_NODE:
                    return node(value, single);
                case GRAPH_INITIALIZER:
                    return used.contains(texts(value, TENSOR_NAME)[0]) ? value : null;
                case GRAPH_INPUT:
                case GRAPH_OUTPUT:
                    return shapeless(value);
                case GRAPH_VALUE_INFO:
                    return null;
                default:
                    return value;
            }
        });
    }

    private static byte[] node(byte[] node, Set<String> single) throws IOException {
        boolean isWhole = texts(node, NODE_OP_TYPE)[0].equals("DequantizeLinear") && single.contains(texts(node, NODE_INPUT)[1]);
        return isWhole ? each(node, (field, value) -> field == NODE_ATTRIBUTE ? null : value) : node;
    }

    private static byte[] shapeless(byte[] value) throws IOException {
        return each(value, (field, type) -> field != VALUE_TYPE ? type : each(type, (kind, tensor) ->
                kind != TYPE_TENSOR ? tensor : each(tensor, (part, shape) -> part == TENSOR_TYPE_SHAPE ? null : shape)));
    }

    /** Returns whether a tensor has one dimension, of one value. */
    private static boolean isSingle(byte[] tensor) throws IOException {
        CodedInputStream in = CodedInputStream.newInstance(tensor);
        int numValues = 0;
        int numDimensions = 0;
        for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
            if (WireFormat.getTagFieldNumber(tag) != TENSOR_DIMS) {
                in.skipField(tag);
            } else if (WireFormat.getTagWireType(tag) == WireFormat.WIRETYPE_VARINT) {
                numDimensions++;
                numValues += in.readInt64() == 1 ? 1 : 2;
            } else {
                for (byte dimension : in.readByteArray()) {
                    numDimensions++;
                    numValues += dimension == 1 ? 1 : 2;
                }
            }
        }
        return numDimensions == 1 && numValues == 1;
    }

    private static String[] texts(byte[] message, int wanted) throws IOException {
        List<String> found = new ArrayList<>();
        each(message, (field, value) -> {
            if (field == wanted) {
                found.add(Bytes.text(value));
            }
            return value;
        });
        return found.toArray(new String[0]);
    }

    /** What becomes of a field with bytes; null leaves it out. */
    private interface Change {
        byte[] of(int field, byte[] value) throws IOException;
    }

    /** Returns a message of numbers and bytes with each of its fields of bytes changed. */
    private static byte[] each(byte[] message, Change change) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(message.length);
        CodedOutputStream out = CodedOutputStream.newInstance(bytes);
        CodedInputStream in = CodedInputStream.newInstance(message);
        for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
            int field = WireFormat.getTagFieldNumber(tag);
            if (WireFormat.getTagWireType(tag) == WireFormat.WIRETYPE_VARINT) {
                out.writeUInt64(field, in.readUInt64());
                continue;
            }
            byte[] value = change.of(field, in.readByteArray());
            if (value != null) {
                out.writeByteArray(field, value);
            }
        }
        out.flush();
        return bytes.toByteArray();
    }
}
