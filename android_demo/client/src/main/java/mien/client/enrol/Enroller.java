package mien.client.enrol;

import mien.client.KnownFaceException;

/** What stores a person: the gallery with the model in use. */
public interface Enroller {
    /** Returns embeddings of aligned crops, each at length 1. */
    float[][] embed(byte[][] crops);

    /** Returns the cosine from which on two faces are one person's; minus infinity where it is not known. */
    double threshold();

    /**
     * Stores a person as a whole or not at all; returns their number. The crops are overwritten afterwards. Throws
     * ALREADY_EXISTS for a name that is taken and, but with {@code anyway}, {@link KnownFaceException} for a face that is.
     */
    int enrol(String name, byte[][] crops, Consent consent, boolean anyway);
}
