package mien.app.keys;

import android.os.Build;
import android.security.KeyStoreException;
import android.security.keystore.KeyPermanentlyInvalidatedException;
import android.security.keystore.UserNotAuthenticatedException;
import mien.client.ErrorCode;
import mien.client.MienException;

/**
 * What it means that AndroidKeyStore failed. It is lost for good only where Android says so; a phone that is locked has to
 * be unlocked; everything else may be better later. None of it is damage: that is a tag that does not verify.
 */
final class Faults {
    private static final int DEEPEST = 8;

    private Faults() {}

    static MienException meaning(Throwable failure, boolean isLocked) {
        ErrorCode code = isLocked ? ErrorCode.KEY_LOCKED : ErrorCode.KEY_STORE;
        Throwable cause = failure;
        for (int depth = 0; cause != null && depth < DEEPEST; depth++, cause = cause.getCause()) {
            ErrorCode said = said(cause);
            code = said == null ? code : said;
        }
        return new MienException(code, sentence(code), failure);
    }

    /** Returns what an exception says by its kind; null where that is nothing. */
    private static ErrorCode said(Throwable failure) {
        if (failure instanceof KeyPermanentlyInvalidatedException) {
            return ErrorCode.KEY_LOST;
        }
        if (failure instanceof UserNotAuthenticatedException) {
            return ErrorCode.KEY_LOCKED;
        }
        boolean isNumbered = Build.VERSION.SDK_INT >= Build.VERSION_CODES.TIRAMISU && failure instanceof KeyStoreException;
        if (!isNumbered) {
            return null;
        }
        switch (((KeyStoreException) failure).getNumericErrorCode()) {
            case KeyStoreException.ERROR_KEY_DOES_NOT_EXIST:
            case KeyStoreException.ERROR_KEY_CORRUPTED:
                return ErrorCode.KEY_LOST;
            case KeyStoreException.ERROR_USER_AUTHENTICATION_REQUIRED:
                return ErrorCode.KEY_LOCKED;
            default:
                return null;
        }
    }

    private static String sentence(ErrorCode code) {
        switch (code) {
            case KEY_LOST:
                return "the phone's key store has lost a key for good; wipe, and enrol again";
            case KEY_LOCKED:
                return "the phone's key store is locked; nothing is lost, unlock the phone, then try again";
            default:
                return "the phone's key store does not answer now; nothing is lost, try again later";
        }
    }
}
