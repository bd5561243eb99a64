package mien.app;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import mien.client.Inside;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Json;

/**
 * The tiny network of the tests with its exported graphs, which ONNX Runtime runs as it runs any other. Its parameters
 * average over 16 squares of a face and mix them: it tells pictures apart by their light, and people hardly.
 */
public final class TinyModel {
    private static final String LAYOUT = "1b9d8983c3ae2895adcda1f714e56bb908fd2a66cfc23d834d3580086443acf2";
    private static final String SPEC =
            "{\"layout\":["
                    + "{\"kind\":\"parameter\",\"name\":\"stem.0.weight\",\"shape\":[3,3,3,3]},"
                    + "{\"kind\":\"parameter\",\"name\":\"stem.0.bias\",\"shape\":[3]},"
                    + "{\"kind\":\"parameter\",\"name\":\"stem.1.weight\",\"shape\":[3]},"
                    + "{\"kind\":\"parameter\",\"name\":\"mix.0.weight\",\"shape\":[4,3,3,3]},"
                    + "{\"kind\":\"parameter\",\"name\":\"mix.0.bias\",\"shape\":[4]},"
                    + "{\"kind\":\"parameter\",\"name\":\"mix.1.weight\",\"shape\":[4]},"
                    + "{\"kind\":\"parameter\",\"name\":\"embedding.1.weight\",\"shape\":[8,64]},"
                    + "{\"kind\":\"parameter\",\"name\":\"embedding.1.bias\",\"shape\":[8]}],"
                    + "\"spec\":{GROUPS\"backbone\":\"tiny\",\"input\":{\"colour\":\"RGB\",\"dim\":8,\"height\":112,"
                    + "\"mean\":127.5,\"scale\":128.0,\"width\":112},\"layout_sha256\":\"LAYOUT\",\"source\":\"made up\","
                    + "\"terms\":\"none\",\"thresholds\":[{\"value\":THRESHOLD,\"fmr\":0.001,\"dataset\":\"made up\","
                    + "\"model_id\":\"MODEL\"}],\"trainable\":[\"mix.*\",\"embedding.*\"]}}";

    private TinyModel() {}

    /**
     * Puts the model on a phone, as if it had been fetched, with the cosine from which on faces are one person's, and with
     * groups of people that it was measured on: attribute, name, verdict.
     */
    public static void install(Phone phone, double threshold, String[]... groups) throws IOException {
        StringBuilder told = new StringBuilder();
        for (String[] each : groups) {
            told.append(told.length() == 0 ? "\"groups\":[" : ",");
            told.append(String.format("{\"attribute\":\"%s\",\"group\":\"%s\",\"verdict\":\"%s\",", (Object[]) each));
            told.append("\"model_id\":\"MODEL\"}");
        }
        install(phone, threshold, groups.length == 0 ? "" : told + "],");
    }

    /**
     * Puts the model on a phone with so many public people that came with it: two pictures each, of which one is the other but
     * for a little noise.
     */
    public static void installWithPublic(Phone phone, double threshold, int people) throws IOException {
        byte[] shard = shard(people);
        String name = Bytes.hex(Bytes.sha256(shard));
        new Folder(phone.home()).folder("models").write(name, shard);
        Map<String, Object> more = new LinkedHashMap<>();
        more.put("shard", name);
        more.put("shard_bytes", shard.length);
        install(phone, threshold, "", more);
    }

    /** Returns a picture of somebody made up: 4 x 4 squares of light, with noise of its own. */
    public static byte[] crop(int person, int number) {
        Random squares = new Random(1000 + person);
        Random noise = new Random(1_000_000L * person + number);
        int[] light = squares.ints(16 * 3, 40, 216).toArray();
        byte[] crop = new byte[112 * 112 * 3];
        for (int i = 0; i < crop.length; i++) {
            int pixel = i / 3;
            int square = pixel / 112 / 28 * 4 + pixel % 112 / 28;
            crop[i] = (byte) (light[3 * square + i % 3] + noise.nextInt(41) - 20);
        }
        return crop;
    }

    private static byte[] shard(int people) {
        int count = 2 * people;
        int size = 112 * 112 * 3;
        Map<String, Object> header = new LinkedHashMap<>();
        header.put("crops", tensor("U8", Arrays.asList(count, 112, 112, 3), 0, count * size));
        header.put("labels", tensor("I64", Arrays.asList(count), count * size, count * (size + 8)));
        StringBuilder json = new StringBuilder(Json.write(header));
        while (json.length() % 8 != 0) {
            json.append(' ');
        }
        byte[] head = Bytes.utf8(json.toString());
        ByteBuffer shard = ByteBuffer.allocate(8 + head.length + count * (size + 8)).order(ByteOrder.LITTLE_ENDIAN);
        shard.putLong(head.length).put(head);
        for (int i = 0; i < count; i++) {
            shard.put(crop(1 + i / 2, i % 2));
        }
        for (int i = 0; i < count; i++) {
            shard.putLong(i / 2);
        }
        return shard.array();
    }

    private static Map<String, Object> tensor(String type, List<Integer> shape, int from, int to) {
        Map<String, Object> tensor = new LinkedHashMap<>();
        tensor.put("dtype", type);
        tensor.put("shape", shape);
        tensor.put("data_offsets", Arrays.asList(from, to));
        return tensor;
    }

    private static void install(Phone phone, double threshold, String groups) throws IOException {
        install(phone, threshold, groups, Collections.emptyMap());
    }

    private static void install(Phone phone, double threshold, String groups, Map<String, Object> more) throws IOException {
        float[] theta = theta();
        String modelId = Bytes.hex(Bytes.sha256(Bytes.unhex(LAYOUT), Bytes.littleEndian(theta)));
        Folder models = new Folder(phone.home()).folder("models");
        String name = Bytes.hex(Bytes.sha256(Bytes.littleEndian(theta)));
        models.write(name, Bytes.littleEndian(theta));
        Map<String, Object> manifest = new LinkedHashMap<>();
        manifest.put("spec_json", Bytes.hex(Bytes.utf8(spec(modelId, threshold, groups))));
        manifest.put("theta", name);
        manifest.putAll(more);
        models.write(modelId + ".json", Bytes.utf8(Json.write(manifest)));
        Folder graphs = new Folder(phone.home()).folder("graphs").folder(LAYOUT);
        for (File file : new File(System.getProperty("mien.root"), "tests/data/graphs/" + LAYOUT).listFiles()) {
            Files.copy(file.toPath(), graphs.path(file.getName()), StandardCopyOption.REPLACE_EXISTING); // and not to stable storage: no test cuts the power
        }
        Inside.gallery(phone.open().device).reembed(modelId, crops -> new float[8]);
    }

    /** Returns parameters that pass colours on, and in the end mix how they differ from their mean over the face. */
    private static float[] theta() {
        float[] stem = passing(3, 3);
        float[] mix = passing(4, 3);
        float[] embedding = new float[8 * 64];
        Random random = new Random(7);
        for (int row = 0; row < 8; row++) {
            for (int channel = 0; channel < 3; channel++) {
                float mean = 0;
                int at = row * 64 + channel * 16;
                for (int i = 0; i < 16; i++) {
                    embedding[at + i] = (float) random.nextGaussian();
                    mean += embedding[at + i] / 16;
                }
                for (int i = 0; i < 16; i++) {
                    embedding[at + i] -= mean;
                }
            }
        }
        float[] ones = {1, 1, 1, 1};
        float[][] all = {stem, new float[3], Arrays.copyOf(ones, 3), mix, new float[4], ones, embedding, new float[8]};
        float[] theta = new float[0];
        for (float[] part : all) {
            int at = theta.length;
            theta = Arrays.copyOf(theta, at + part.length);
            System.arraycopy(part, 0, theta, at, part.length);
        }
        return theta;
    }

    /** Returns a convolution of 3 x 3 that gives out what comes in; what has nothing to pass on is nought. */
    private static float[] passing(int out, int in) {
        float[] weights = new float[out * in * 9];
        for (int channel = 0; channel < in; channel++) {
            weights[(channel * in + channel) * 9 + 4] = 1;
        }
        return weights;
    }

    private static String spec(String modelId, double threshold, String groups) {
        return SPEC.replace("GROUPS", groups).replace("LAYOUT", LAYOUT).replace("MODEL", modelId).replace("THRESHOLD", String.valueOf(threshold));
    }
}
