package mien.client.secagg;

/** Of a device's {@code total} neighbours, how many counted as old enough, and how many younger ones as attested. */
public final class PeerCount {
    public final int total;
    public final int old;
    public final int attested;

    PeerCount(int total, int old, int attested) {
        this.total = total;
        this.old = old;
        this.attested = attested;
    }
}
