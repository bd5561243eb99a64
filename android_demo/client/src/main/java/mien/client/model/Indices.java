package mien.client.model;

import java.util.Arrays;
import java.util.function.IntPredicate;

/** Numbers of what a list holds, by plain loops: static methods of interfaces do not survive tools/dex_roundtrip. */
public final class Indices {
    private Indices() {}

    /** Returns 0 to {@code count} - 1. */
    public static int[] upTo(int count) {
        return where(count, i -> true);
    }

    /** Returns those of 0 to {@code count} - 1 that are wanted, in order. */
    public static int[] where(int count, IntPredicate wanted) {
        int[] found = new int[count];
        int size = 0;
        for (int i = 0; i < count; i++) {
            if (wanted.test(i)) {
                found[size++] = i;
            }
        }
        return Arrays.copyOf(found, size);
    }
}
