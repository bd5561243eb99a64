package mien.client.wire;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.security.cert.CertificateException;
import mien.client.ErrorCode;
import mien.client.MienException;

/** What a failed call means: the server's own code where it gives one, else what the status says. */
public final class Statuses {
    private static final Metadata.Key<String> CODE = Metadata.Key.of("mien-error", Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> RETRY =
            Metadata.Key.of("mien-retry-after-ms", Metadata.ASCII_STRING_MARSHALLER);
    private static final int MOST_DETAILS = 200;

    private Statuses() {}

    /** Returns what the failure of a call means; errors name the peer so. */
    public static MienException meaning(StatusRuntimeException error, String peer) {
        Metadata trailers = error.getTrailers();
        String word = trailers == null ? null : trailers.get(CODE);
        String description = error.getStatus().getDescription();
        String details = description == null ? "" : Texts.cut(description);
        long retryMs = retryAfterMs(trailers);
        if (word == null && error.getStatus().getCode() == Status.Code.CANCELLED && Thread.currentThread().isInterrupted()) {
            return MienException.cancelled(error);
        }
        if (word == null && isUntrusted(error)) {
            return new MienException(
                    ErrorCode.CERTIFICATE,
                    peer + " does not show a certificate that this device trusts: somebody else answers, such as a login"
                            + " page of the network, or the servers were set up anew; use another network, else join again",
                    error);
        }
        if (word == null) {
            String shortened = details.substring(0, Math.min(MOST_DETAILS, details.length()));
            String text = peer + " did not answer as expected (" + error.getStatus().getCode() + ": " + shortened + ")";
            return new MienException(
                    foreign(error.getStatus().getCode()), text + "; check address and network, retry", retryMs, error);
        }
        ErrorCode code = ErrorCode.of(word);
        if (code == ErrorCode.DISK_FULL || code == ErrorCode.DATABASE || code == ErrorCode.FILE_ACCESS || code == ErrorCode.CANCELLED || code.isOutOfReach() || code == ErrorCode.KEY_LOST) {
            // A server whose own disk, database or keys fail is one that is away; of this phone's keys it says nothing.
            String text = peer + " cannot store anything now (" + details + "); this is for its operator to mend";
            return new MienException(ErrorCode.UNREACHABLE, text, retryMs, error);
        }
        return new MienException(code, details, retryMs, error);
    }

    private static boolean isUntrusted(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof CertificateException) {
                return true;
            }
        }
        return false;
    }

    private static long retryAfterMs(Metadata trailers) {
        String text = trailers == null ? null : trailers.get(RETRY);
        return text != null && text.matches("[0-9]{1,12}") ? Long.parseLong(text) : 0;
    }

    private static ErrorCode foreign(Status.Code code) {
        switch (code) {
            case UNIMPLEMENTED:
                return ErrorCode.VERSION;
            case RESOURCE_EXHAUSTED:
                return ErrorCode.RATE_LIMITED;
            case DATA_LOSS:
                return ErrorCode.CORRUPT_DATA;
            case ABORTED:
                return ErrorCode.LATE;
            default:
                return ErrorCode.UNREACHABLE;
        }
    }
}
