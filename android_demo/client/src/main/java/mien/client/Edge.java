package mien.client;

import java.util.function.Supplier;

/** What ends the work on what others sent or stored: an error with a code, also where nobody foresaw it. */
final class Edge {
    private Edge() {}

    /** Returns what {@code work} does; everything but a {@link MienException} becomes one, with the code OTHER. */
    static <T> T run(Supplier<T> work) {
        try {
            return work.get();
        } catch (MienException error) {
            throw error;
        } catch (RuntimeException | OutOfMemoryError | StackOverflowError error) {
            String what = error.getClass().getSimpleName();
            throw new MienException(
                    ErrorCode.OTHER, "this program could not go on (" + what + "); try later, and tell the operator", error);
        }
    }
}
