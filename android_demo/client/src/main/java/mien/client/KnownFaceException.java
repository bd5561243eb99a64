package mien.client;

import java.util.Collections;
import java.util.List;

/** ALREADY_EXISTS by face: whoever was to be enrolled is here already, or looks too much like somebody who is. */
public final class KnownFaceException extends MienException {
    /** As they were enrolled, the most alike first; at least one. */
    public final List<String> names;

    /** Says who the face is like, by names. */
    public KnownFaceException(List<String> names, String message) {
        super(ErrorCode.ALREADY_EXISTS, message);
        this.names = Collections.unmodifiableList(names);
    }
}
