package mien.client.secagg;

import java.util.Arrays;
import mien.client.wire.Bytes;

/** What the device itself knows of the round: hashes of the task and files that it holds, and the update's size. */
public final class Expected {
    final byte[] taskId;
    final byte[] taskSha256;
    final byte[] modelSha256;
    final byte[] layoutSha256;
    final byte[] statementSha256;
    final int size;
    final int numMetrics;

    public Expected(
            byte[] taskId,
            byte[] taskSha256,
            byte[] modelSha256,
            byte[] layoutSha256,
            byte[] statementSha256,
            int size,
            int numMetrics) {
        this.taskId = taskId;
        this.taskSha256 = taskSha256;
        this.modelSha256 = modelSha256;
        this.layoutSha256 = layoutSha256;
        this.statementSha256 = statementSha256;
        this.size = size;
        this.numMetrics = numMetrics;
    }

    /** Returns how the protocol names a task by its id. */
    public static byte[] taskId(String id) {
        return Arrays.copyOf(
                Canonical.hash("task", Bytes.utf8(id)), Canonical.ID_BYTES);
    }
}
