package mien.client.vision;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.train.Engine;
import mien.client.train.OrtEngine;
import mien.client.train.Tensor;

/**
 * Finds faces with YuNet (Wu et al., Machine Intelligence Research 2023), as OpenCV's FaceDetectorYN does; from several
 * threads one after another.
 */
public final class YuNet implements FaceFinder {
    /** Longest side of the picture that is searched first; the second search, where that finds nothing, has twice it. */
    static final int DETECTION_SIDE = 640;

    static final float MIN_SCORE = 0.6f;
    static final double MAX_OVERLAP = 0.3f;
    static final int MIN_SIDE = 10;
    private static final int[] STRIDES = {8, 16, 32};
    private static final int DIVISOR = 32;
    private static final int ROW = 15;

    private final Engine engine;

    /** Takes an engine that runs YuNet's graph, and closes it in the end. */
    YuNet(Engine engine) {
        this.engine = engine;
    }

    /** Returns a detector on the file's bytes (face_detection_yunet_2023mar_int8bq.onnx); throws CORRUPT_DATA for others. */
    public static YuNet of(byte[] file) {
        return new YuNet(new OrtEngine(YuNetGraph.of(file), 1));
    }

    @Override
    public synchronized List<Face> find(Frame frame) {
        List<Face> found = search(frame, 1);
        return found.isEmpty() ? search(frame, 2) : found;
    }

    @Override
    public synchronized List<Face> search(Frame frame) {
        return search(frame, 1);
    }

    /** Returns a picture at the size at which it is searched first. */
    static Frame resized(Frame frame) {
        return resized(frame, 1);
    }

    private static Frame resized(Frame frame, int times) {
        double scale = times * Math.min(1.0, (double) DETECTION_SIDE / Math.max(frame.width, frame.height));
        int width = Math.max(1, (int) Math.rint(frame.width * scale));
        return Resizing.to(frame, width, Math.max(1, (int) Math.rint(frame.height * scale)));
    }

    private List<Face> search(Frame frame, int times) {
        if (Math.min(frame.width, frame.height) < MIN_SIDE) {
            return Collections.emptyList();
        }
        Frame resized = resized(frame, times);
        List<Face> faces = new ArrayList<>();
        for (float[] row : best(rows(resized))) {
            if (isFinite(row)) {
                faces.add(face(row).unscaled(resized, frame));
            }
        }
        return faces;
    }

    /** Returns (x, y, width, height, five landmarks, score) of whatever may be a face. */
    private List<float[]> rows(Frame frame) {
        int width = (frame.width + DIVISOR - 1) / DIVISOR * DIVISOR;
        int height = (frame.height + DIVISOR - 1) / DIVISOR * DIVISOR;
        Tensor input = new Tensor(padded(frame, width, height), 1, 3, height, width);
        Map<String, Tensor> outputs = engine.run(
                YuNetGraph.KIND, "", Collections.<String>emptyList(), "", Collections.singletonMap("input", input));
        List<float[]> rows = new ArrayList<>();
        for (int stride : STRIDES) {
            decode(outputs, stride, width / stride, height / stride, rows);
        }
        return rows;
    }

    /** Returns blue, green and red planes, black at the right and below. */
    private static float[] padded(Frame frame, int width, int height) {
        int plane = width * height;
        float[] values = new float[3 * plane];
        for (int y = 0, from = 0; y < frame.height; y++) {
            for (int x = 0, to = y * width; x < frame.width; x++, from += 3, to++) {
                values[to] = frame.rgb[from + 2] & 0xff;
                values[to + plane] = frame.rgb[from + 1] & 0xff;
                values[to + 2 * plane] = frame.rgb[from] & 0xff;
            }
        }
        return values;
    }

    private static void decode(Map<String, Tensor> outputs, int stride, int columns, int rows, List<float[]> found) {
        int count = columns * rows;
        float[] isFace = output(outputs, "cls_" + stride, count);
        float[] isObject = output(outputs, "obj_" + stride, count);
        float[] boxes = output(outputs, "bbox_" + stride, 4 * count);
        float[] points = output(outputs, "kps_" + stride, 10 * count);
        for (int i = 0; i < count; i++) {
            float score = (float) Math.sqrt(share(isFace[i]) * share(isObject[i]));
            if (score >= MIN_SCORE) {
                found.add(row(boxes, points, i, i % columns, i / columns, stride, score));
            }
        }
    }

    private static float[] output(Map<String, Tensor> outputs, String name, int size) {
        Tensor output = outputs.get(name);
        if (output == null || output.values().length != size) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the face detector gives other numbers than it should; install it again");
        }
        return output.values();
    }

    private static float share(float value) {
        return Math.max(0, Math.min(1, value));
    }

    private static float[] row(float[] boxes, float[] points, int i, int column, int line, int stride, float score) {
        float[] row = new float[ROW];
        row[2] = (float) Math.exp(boxes[4 * i + 2]) * stride;
        row[3] = (float) Math.exp(boxes[4 * i + 3]) * stride;
        row[0] = (column + boxes[4 * i]) * stride - row[2] / 2;
        row[1] = (line + boxes[4 * i + 1]) * stride - row[3] / 2;
        for (int point = 0; point < 10; point += 2) {
            row[4 + point] = (points[10 * i + point] + column) * stride;
            row[5 + point] = (points[10 * i + point + 1] + line) * stride;
        }
        row[ROW - 1] = score;
        return row;
    }

    /** Returns the rows that no surer one overlaps by more than {@link #MAX_OVERLAP}, the surest first. */
    private static List<float[]> best(List<float[]> rows) {
        float[][] sorted = rows.toArray(new float[0][]);
        Arrays.sort(sorted, (a, b) -> Float.compare(b[ROW - 1], a[ROW - 1]));
        List<float[]> kept = new ArrayList<>();
        for (float[] row : sorted) {
            boolean isNew = true;
            for (float[] surer : kept) {
                isNew &= overlap(row, surer) <= MAX_OVERLAP;
            }
            if (isNew) {
                kept.add(row);
            }
        }
        return kept;
    }

    /** Returns the share of the union that two boxes have in common, in whole pixels as OpenCV counts them. */
    private static double overlap(float[] a, float[] b) {
        double areaA = (double) (int) a[2] * (int) a[3];
        double areaB = (double) (int) b[2] * (int) b[3];
        double width = Math.min((double) (int) a[0] + (int) a[2], (double) (int) b[0] + (int) b[2])
                - Math.max((int) a[0], (int) b[0]);
        double height = Math.min((double) (int) a[1] + (int) a[3], (double) (int) b[1] + (int) b[3])
                - Math.max((int) a[1], (int) b[1]);
        if (areaA + areaB <= 0) {
            return 1;
        }
        double common = width > 0 && height > 0 ? width * height : 0;
        return common / (areaA + areaB - common);
    }

    private static boolean isFinite(float[] row) {
        for (float value : row) {
            if (Float.isNaN(value) || Float.isInfinite(value)) {
                return false;
            }
        }
        return true;
    }

    private static Face face(float[] row) {
        double[] landmarks = new double[10];
        for (int i = 0; i < 10; i++) {
            landmarks[i] = row[4 + i];
        }
        return new Face(row[0], row[1], row[2], row[3], landmarks, row[ROW - 1]);
    }

    @Override
    public void close() {
        engine.close();
    }
}
