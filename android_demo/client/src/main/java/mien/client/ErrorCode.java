package mien.client;

/** What can go wrong, by the codes that all programs of Mien use between one another. */
public enum ErrorCode {
    CONFIG("config"),
    IMAGE("image"),
    LOW_QUALITY("low_quality"),
    NOT_ENROLLED("not_enrolled"),
    ALREADY_EXISTS("already_exists"),
    NOT_FOUND("not_found"),
    CORRUPT_DATA("corrupt_data"),
    LAYOUT_MISMATCH("layout_mismatch"),
    MODEL_MISMATCH("model_mismatch"),
    NON_FINITE("non_finite"),
    INVITE("invite"),
    FINGERPRINT("fingerprint"),
    CERTIFICATE("certificate"),
    REVOKED("revoked"),
    PERMISSION_DENIED("permission_denied"),
    VERSION("version"),
    LATE("late"),
    OFFSET("offset"),
    REPLAY("replay"),
    COHORT("cohort"),
    VIOLATION("violation"),
    BUDGET_EXCEEDED("budget_exceeded"),
    TRANSPARENCY("transparency"),
    UNREACHABLE("unreachable"),
    DRAINING("draining"),
    RATE_LIMITED("rate_limited"),
    DISK_FULL("disk_full"),
    /** The key store does not answer now; nothing is known to be lost. */
    KEY_STORE("key_store"),
    /** Of this client alone: the phone has to be unlocked before its key store answers. */
    KEY_LOCKED("key_locked"),
    /** Of this client alone: a key is gone for good, and with it what it sealed. */
    KEY_LOST("key_lost"),
    /** Of this client alone: the fleet wants a key that hardware attests, and this phone's is not, or not well enough. */
    NOT_ATTESTED("not_attested"),
    DATABASE("database"),
    FILE_ACCESS("file_access"),
    /** Of this client alone: another program has this device's home open. */
    IN_USE("in_use"),
    /** Of this client alone: whoever began the work stopped it; nothing is wrong with the network, nor lost. */
    CANCELLED("cancelled"),
    /** One that a newer program has. */
    OTHER("other");

    private final String code;

    ErrorCode(String code) {
        this.code = code;
    }

    /** Returns the stable word that travels. */
    public String code() {
        return code;
    }

    /** Returns whether the same call can succeed later, unchanged. */
    public boolean isTransient() {
        return this == UNREACHABLE || this == DRAINING || this == RATE_LIMITED || this == CANCELLED;
    }

    /** Returns whether a key cannot be reached now: what it sealed is as it was, and opens again later. */
    public boolean isOutOfReach() {
        return this == KEY_STORE || this == KEY_LOCKED;
    }

    /** Returns whether the disk failed; what was stored before is as it was. */
    public boolean isOfTheDisk() {
        return this == DISK_FULL || this == FILE_ACCESS || this == DATABASE;
    }

    /** Returns whether what was stored never opens again: it was changed, or its key is gone. */
    public boolean isGone() {
        return this == CORRUPT_DATA || this == KEY_LOST;
    }

    /** Returns whether a round that ends so is simply over: nothing is lost, and the next one may be joined. */
    public boolean isRoundOver() {
        return this == LATE || this == NOT_FOUND || this == REPLAY || this == COHORT;
    }

    /** Returns the code of a word; OTHER for one that is unknown here. */
    public static ErrorCode of(String word) {
        for (ErrorCode each : values()) {
            if (each.code.equals(word)) {
                return each;
            }
        }
        return OTHER;
    }
}
