package mien.client.model;

import java.util.Arrays;
import java.util.Collections;
import mien.client.ErrorCode;
import mien.client.Raised;
import org.junit.Test;

/** What a phone's memory cannot hold is not fetched. */
public class SizesTest {
    private static final String SHA = String.join("", Collections.nCopies(32, "ab"));

    private static Manifest manifest(long theta, long shard) {
        return new Manifest(SHA, new byte[0], new Blob(SHA, theta), new Blob(SHA, shard), new byte[0], new byte[0]);
    }

    @Test
    public void modelsAndFacesFitMemoryOrAreRefused() {
        long memory = 256L << 20;
        for (long[] sizes : Arrays.asList(new long[] {1L << 29, 1}, new long[] {1, 1L << 28}, new long[] {memory / 2 + 1, 0})) {
            Raised.by(ErrorCode.CONFIG, "too large", () -> ModelStore.checkFits(manifest(sizes[0], sizes[1]), memory));
        }
        ModelStore.checkFits(manifest(memory / 2, 64L << 20), memory);
    }
}
