package mien.client;

/** An error with a stable code; the message says what happened and what to do, and never holds faces or keys. */
public class MienException extends RuntimeException {
    private final ErrorCode code;
    private final long retryAfterMs;

    public MienException(ErrorCode code, String message) {
        this(code, message, 0, null);
    }

    public MienException(ErrorCode code, String message, Throwable cause) {
        this(code, message, 0, cause);
    }

    public MienException(ErrorCode code, String message, long retryAfterMs, Throwable cause) {
        super(message, cause);
        this.code = code;
        this.retryAfterMs = retryAfterMs;
    }

    public ErrorCode code() {
        return code;
    }

    /** Returns how long the server asks to wait before the next try; 0 where it does not say. */
    public long retryAfterMs() {
        return retryAfterMs;
    }
}
