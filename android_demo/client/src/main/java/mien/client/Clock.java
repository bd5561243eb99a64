package mien.client;

/** The time; injected, so that tests can hold it. */
public interface Clock {
    /** Returns milliseconds since 1970. */
    long unixMs();

    /** Returns milliseconds that never go back. */
    long monotonicMs();

    /** Waits; throws CANCELLED where the thread is interrupted. */
    void sleep(long ms);

    /** Returns the device's own clock. */
    static Clock system() {
        return new Clock() {
            @Override
            public long unixMs() {
                return System.currentTimeMillis();
            }

            @Override
            public long monotonicMs() {
                return System.nanoTime() / 1_000_000;
            }

            @Override
            public void sleep(long ms) {
                try {
                    Thread.sleep(ms);
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                    throw MienException.cancelled(error);
                }
            }
        };
    }
}
