package mien.client.secagg;

/** What a device remembers of attempts, on stable storage before each method returns. */
public interface AttemptLog {
    /** Remembers an attempt; throws REPLAY unless it is later than every other of its task. */
    void begin(RoundConfig config);

    /** Counts one more participation: from here on the server may learn a sum with this device in it. */
    void recordMasked(AttemptId attempt);

    /** Remembers that shares go out; throws REPLAY if they did before. */
    void recordUnmasked(AttemptId attempt);
}
