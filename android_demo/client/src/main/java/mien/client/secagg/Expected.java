package mien.client.secagg;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.wire.Bytes;
import mien.client.wire.Json;

/** What the device itself knows of the round: hashes of the task and files that it holds, and the update's size. */
public final class Expected {
    final byte[] taskId;
    final byte[] taskSha256;
    final byte[] modelSha256;
    final byte[] layoutSha256;
    final byte[] statementSha256;
    final int size;
    final int numMetrics;

    /** Holds what this device was told of a round before it began. */
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

    /** Returns the entry of an attempt that the public log of rounds has to hold: canonical JSON, hashes alone. */
    public String logEntry(AttemptId attempt) {
        Map<String, Object> entry = new LinkedHashMap<>();
        entry.put("kind", "round");
        entry.put("task", Bytes.hex(taskId));
        entry.put("round", attempt.round);
        entry.put("attempt", attempt.attempt);
        entry.put("task_sha256", Bytes.hex(taskSha256));
        entry.put("model_sha256", Bytes.hex(modelSha256));
        entry.put("layout_sha256", Bytes.hex(layoutSha256));
        entry.put("statement_sha256", Bytes.hex(statementSha256));
        return Json.write(entry);
    }

    /** Returns how the protocol names a task by its id. */
    public static byte[] taskId(String id) {
        return Arrays.copyOf(
                Canonical.hash("task", Bytes.utf8(id)), Canonical.ID_BYTES);
    }
}
