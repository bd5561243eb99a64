package mien.client;

/** An error with a stable code; the message says what happened and what to do, and never holds faces or keys. */
public class MienException extends RuntimeException {
    private final ErrorCode code;
    private final long retryAfterMs;

    /** Fails of itself. */
    public MienException(ErrorCode code, String message) {
        this(code, message, 0, null);
    }

    /** Fails of something else, which stays with it. */
    public MienException(ErrorCode code, String message, Throwable cause) {
        this(code, message, 0, cause);
    }

    /** Fails, with the pause that a server asked for in milliseconds. */
    public MienException(ErrorCode code, String message, long retryAfterMs, Throwable cause) {
        super(message, cause);
        this.code = code;
        this.retryAfterMs = retryAfterMs;
    }

    /** Returns that whoever began the work stopped it, by interrupting its thread. */
    public static MienException cancelled(Throwable cause) {
        return new MienException(ErrorCode.CANCELLED, "this was stopped; nothing is lost, begin again when it suits", cause);
    }

    /** Returns what went wrong, by which a program decides what to do. */
    public ErrorCode code() {
        return code;
    }

    /** Returns how long the server asks to wait before the next try; 0 where it does not say. */
    public long retryAfterMs() {
        return retryAfterMs;
    }
}
