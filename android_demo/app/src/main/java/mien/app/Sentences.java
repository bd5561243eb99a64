package mien.app;

import android.content.res.Resources;
import mien.client.ErrorCode;
import mien.client.MienException;

/** Errors in the owner's language: what happened, and what to do. */
public final class Sentences {
    private Sentences() {}

    public static String of(Resources resources, MienException error) {
        return of(resources, error.code());
    }

    public static String of(Resources resources, ErrorCode code) {
        return resources.getString(id(code));
    }

    private static int id(ErrorCode code) {
        switch (code) {
            case IMAGE:
                return R.string.error_image;
            case LOW_QUALITY:
                return R.string.error_low_quality;
            case NOT_ENROLLED:
                return R.string.error_not_enrolled;
            case ALREADY_EXISTS:
                return R.string.error_already_exists;
            case NOT_FOUND:
                return R.string.error_not_found;
            case CORRUPT_DATA:
                return R.string.error_corrupt_data;
            case LAYOUT_MISMATCH:
            case VERSION:
                return R.string.error_version;
            case MODEL_MISMATCH:
                return R.string.error_model_mismatch;
            case INVITE:
                return R.string.error_invite;
            case FINGERPRINT:
                return R.string.error_fingerprint;
            case CERTIFICATE:
                return R.string.error_certificate;
            case REVOKED:
                return R.string.error_revoked;
            case PERMISSION_DENIED:
                return R.string.error_permission_denied;
            case CONFIG:
                return R.string.error_config;
            case LATE:
            case OFFSET:
            case REPLAY:
            case COHORT:
                return R.string.error_round_over;
            case VIOLATION:
                return R.string.error_violation;
            case NON_FINITE:
                return R.string.error_non_finite;
            case BUDGET_EXCEEDED:
                return R.string.error_budget_exceeded;
            case TRANSPARENCY:
                return R.string.error_transparency;
            case UNREACHABLE:
                return R.string.error_unreachable;
            case DRAINING:
            case RATE_LIMITED:
                return R.string.error_busy;
            case DISK_FULL:
            case DATABASE:
            case FILE_ACCESS:
                return R.string.error_disk;
            case KEY_STORE:
                return R.string.error_key_store;
            case KEY_LOCKED:
                return R.string.error_key_locked;
            case KEY_LOST:
                return R.string.error_key_lost;
            case NOT_ATTESTED:
                return R.string.error_not_attested;
            case CANCELLED:
                return R.string.error_cancelled;
            case IN_USE:
                return R.string.error_in_use;
            default:
                return R.string.error_other;
        }
    }
}
