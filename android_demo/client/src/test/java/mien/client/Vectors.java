package mien.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.List;
import java.util.Map;
import mien.client.wire.Bytes;
import mien.client.wire.Json;

/** A value in a vector file, which Python wrote; reached by its names. */
public final class Vectors {
    private final Object value;

    private Vectors(Object value) {
        this.value = value;
    }

    /** Returns the repository's folder of tests. */
    public static Path tests() {
        return Paths.get(System.getProperty("mien.tests", "../../tests"));
    }

    public static Vectors load(String file) throws IOException {
        return new Vectors(Json.parse(Files.readAllBytes(tests().resolve(file)), file));
    }

    public static Vectors of(Object value) {
        return new Vectors(value);
    }

    public Vectors at(String name) {
        Map<?, ?> fields = (Map<?, ?>) value;
        if (!fields.containsKey(name)) {
            throw new IllegalArgumentException("no value " + name);
        }
        return new Vectors(fields.get(name));
    }

    public boolean has(String name) {
        return ((Map<?, ?>) value).containsKey(name);
    }

    public Vectors at(int index) {
        return new Vectors(((List<?>) value).get(index));
    }

    public int size() {
        return value instanceof List ? ((List<?>) value).size() : ((Map<?, ?>) value).size();
    }

    public Object raw() {
        return value;
    }

    public String text() {
        return (String) value;
    }

    public byte[] bytes() {
        return Bytes.unhex(text());
    }

    public float[] floats() {
        return Bytes.floats(bytes());
    }

    public long number() {
        return (Long) value;
    }

    public int word() {
        return (int) number();
    }

    public double real() {
        return ((Number) value).doubleValue();
    }

    public boolean flag() {
        return (Boolean) value;
    }

    public int[] words() {
        int[] words = new int[size()];
        for (int i = 0; i < words.length; i++) {
            words[i] = at(i).word();
        }
        return words;
    }

    public double[] reals() {
        double[] reals = new double[size()];
        for (int i = 0; i < reals.length; i++) {
            reals[i] = at(i).real();
        }
        return reals;
    }
}
