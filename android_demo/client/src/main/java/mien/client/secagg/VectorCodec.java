package mien.client.secagg;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import mien.client.ErrorCode;
import mien.client.MienException;

/** The vector that is masked: count 1, weight, clip bit, metrics, checksum, update; integers modulo 2^32. */
final class VectorCodec {
    private static final int FIRST_METRIC = 3;

    private VectorCodec() {}

    /** Returns a device's vector; rounding words go to metrics, then update. */
    static int[] encode(Addends said, RoundConfig config, byte[] binding, WordStream rounding) {
        NumberFormat numbers = config.numbers;
        if (said.update.length != config.size || said.metrics.length != config.numMetrics) {
            throw new MienException(
                    ErrorCode.LAYOUT_MISMATCH,
                    "the update has another size than the round adds up; use the model that was assigned");
        }
        if (said.weight < 1 || said.weight > numbers.maxWeight) {
            throw new MienException(
                    ErrorCode.CONFIG, "weight " + said.weight + " is outside 1.." + numbers.maxWeight);
        }
        double left = left(said, numbers);
        double norm = norm(said, null);
        boolean isWithin = norm <= left;
        double factor = isWithin ? 1.0 : left / norm;
        float[] update = said.update;
        if (!said.blocks.isEmpty()) {
            update = said.update.clone();
            factor = 1;
            isWithin = clip(update, said, null, left);
            for (Addends.Block block : said.blocks) {
                isWithin &= clip(update, said, block, block.clip);
            }
        }
        int checksum = FIRST_METRIC + config.numMetrics;
        int[] vector = new int[config.size + config.numMetrics + 4];
        vector[0] = 1;
        vector[1] = said.weight;
        vector[2] = isWithin && said.tellsClip ? 1 : 0;
        putMetrics(said, numbers, rounding, vector);
        putUpdate(update, said.weight, numbers, factor, rounding, vector, checksum + 1);
        for (int i = 0; said.noise != null && i < config.size; i++) {
            vector[checksum + 1 + i] += (int) said.noise[i];
        }
        vector[checksum] = checksum(vector, checksum, binding);
        return vector;
    }

    private static void putMetrics(Addends said, NumberFormat numbers, WordStream rounding, int[] vector) {
        double scale = Math.pow(2, numbers.metricFracBits);
        int[] random = rounding.take(said.metrics.length);
        for (int i = 0; i < random.length; i++) {
            double metric = said.metrics[i];
            if (Double.isNaN(metric) || Double.isInfinite(metric)) {
                throw new MienException(
                        ErrorCode.NON_FINITE, "a metric is NaN or infinite; the device leaves the round");
            }
            vector[FIRST_METRIC + i] =
                    said.weight * NumberFormat.quantise(metric, numbers.metricBound, scale, random[i]);
        }
    }

    private static void putUpdate(
            float[] update,
            int weight,
            NumberFormat numbers,
            double factor,
            WordStream rounding,
            int[] vector,
            int start) {
        double scale = Math.pow(2, numbers.fracBits);
        int[] random = rounding.take(update.length);
        for (int i = 0; i < random.length; i++) {
            double value = update[i] * factor;
            vector[start + i] =
                    weight * NumberFormat.quantise(value, numbers.coordinateClip, scale, random[i]);
        }
    }

    /** Returns what the whole clip leaves beside the blocks' own. */
    private static double left(Addends said, NumberFormat numbers) {
        if (said.blocks.isEmpty()) {
            return numbers.l2Clip;
        }
        double squares = numbers.l2Clip * numbers.l2Clip;
        for (Addends.Block block : said.blocks) {
            squares -= block.clip * block.clip;
        }
        return Math.sqrt(Math.max(0, squares));
    }

    /** Scales a block of an update, or null for what is in none, to a length at most; returns whether it was within. */
    private static boolean clip(float[] update, Addends said, Addends.Block block, double most) {
        double norm = norm(said, block);
        for (int i = 0; norm > most && i < update.length; i++) {
            update[i] *= isIn(said, block, i) ? (float) (most / norm) : 1;
        }
        return norm <= most;
    }

    private static boolean isIn(Addends said, Addends.Block wanted, int place) {
        Addends.Block own = null;
        for (Addends.Block block : said.blocks) {
            own = place >= block.start && place < block.end ? block : own;
        }
        return own == wanted;
    }

    /** Returns the length of a block of what is said, or null for what is in none. */
    private static double norm(Addends said, Addends.Block block) {
        double squares = 0;
        for (int i = 0; i < said.update.length; i++) {
            squares += isIn(said, block, i) ? (double) said.update[i] * said.update[i] : 0;
        }
        if (Double.isNaN(squares) || Double.isInfinite(squares)) {
            throw new MienException(
                    ErrorCode.NON_FINITE, "the update holds NaN or infinity; the device leaves the round");
        }
        return Math.sqrt(squares);
    }

    /** Returns the sum of r_j x_j over all lanes but the checksum itself; being linear, it holds for the sum too. */
    private static int checksum(int[] vector, int at, byte[] binding) {
        int[] coefficients = new WordStream(Canonical.hash("checksum", binding)).take(vector.length);
        int total = 0;
        for (int i = 0; i < vector.length; i++) {
            total += i == at ? 0 : coefficients[i] * vector[i];
        }
        return total;
    }

    /** Returns the low bits of each word, little-endian, without gaps. */
    static byte[] pack(int[] words, int ringBits) {
        int width = ringBits / 8;
        if (width == 4) {
            ByteBuffer packed = ByteBuffer.allocate(4 * words.length).order(ByteOrder.LITTLE_ENDIAN);
            packed.asIntBuffer().put(words);
            return packed.array();
        }
        byte[] packed = new byte[width * words.length];
        for (int i = 0; i < words.length; i++) {
            for (int octet = 0; octet < width; octet++) {
                packed[width * i + octet] = (byte) (words[i] >>> 8 * octet);
            }
        }
        return packed;
    }
}
