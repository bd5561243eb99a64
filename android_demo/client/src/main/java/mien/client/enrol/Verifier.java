package mien.client.enrol;

/** What compares an aligned crop with an enrolled person's templates. */
public interface Verifier {
    /** Returns whether the crop shows the person. */
    boolean isThem(byte[] crop);
}
