package mien.client.secagg;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import javax.crypto.Cipher;
import javax.crypto.spec.IvParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * The words of a seed: AES-128-CTR, key seed[0:16], first block seed[16:28] and the counter 2, little-endian words.
 *
 * <p>Works in blocks of 16 KiB: a JVM runs AES in hardware for calls of that size, and not for one of megabytes.
 */
final class WordStream {
    private static final int BLOCK_WORDS = 4096;
    private static final byte[] ZEROS = new byte[4 * BLOCK_WORDS];

    private final Cipher cipher;
    private final byte[] block = new byte[4 * BLOCK_WORDS];
    private final IntBuffer words = ByteBuffer.wrap(block).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer();

    WordStream(byte[] seed) {
        byte[] counter = Arrays.copyOf(Arrays.copyOfRange(seed, 16, 28), 16);
        counter[15] = 2;
        try {
            cipher = Cipher.getInstance("AES/CTR/NoPadding");
            cipher.init(
                    Cipher.ENCRYPT_MODE, new SecretKeySpec(seed, 0, 16, "AES"), new IvParameterSpec(counter));
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every Java has AES in counter mode", error);
        }
    }

    int[] take(int size) {
        int[] taken = new int[size];
        for (int start = 0; start < size; start += BLOCK_WORDS) {
            int length = fill(Math.min(BLOCK_WORDS, size - start));
            words.get(taken, start, length);
        }
        return taken;
    }

    /** Adds the seed's words to {@code vector}, or subtracts them. */
    static void addTo(int[] vector, byte[] seed, boolean subtract) {
        WordStream stream = new WordStream(seed);
        int[] mask = new int[BLOCK_WORDS];
        for (int start = 0; start < vector.length; start += BLOCK_WORDS) {
            int length = stream.fill(Math.min(BLOCK_WORDS, vector.length - start));
            stream.words.get(mask, 0, length);
            combine(vector, start, mask, length, subtract);
        }
        Arrays.fill(mask, 0);
        Arrays.fill(stream.block, (byte) 0);
    }

    private static void combine(int[] vector, int start, int[] mask, int length, boolean subtract) {
        if (subtract) {
            for (int i = 0; i < length; i++) {
                vector[start + i] -= mask[i];
            }
        } else {
            for (int i = 0; i < length; i++) {
                vector[start + i] += mask[i];
            }
        }
    }

    private int fill(int numWords) {
        try {
            cipher.update(ZEROS, 0, 4 * numWords, block, 0);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("a block of counter mode fits its buffer", error);
        }
        ((java.nio.Buffer) words).rewind();
        return numWords;
    }

    @Override
    public String toString() {
        return "WordStream(***)";
    }
}
