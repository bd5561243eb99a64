package mien.client.people;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;

/**
 * One person's threshold under a personal model, carried over from the released one, with what was counted: pictures of
 * {@link #numFalse} of {@link #numPublic} public people scored at least that, {@link #numMissed} of {@link #numMated} own
 * pictures that were left out of the fit less, and {@link #numMissedReleased} under the released model at its threshold.
 */
public final class PersonalThreshold {
    public final double value;
    public final int numFalse;
    public final int numPublic;
    public final int numMissed;
    public final int numMissedReleased;
    public final int numMated;

    PersonalThreshold(double value, int numFalse, int numPublic, int numMissed, int numMissedReleased, int numMated) {
        this.value = value;
        this.numFalse = numFalse;
        this.numPublic = numPublic;
        this.numMissed = numMissed;
        this.numMissedReleased = numMissedReleased;
        this.numMated = numMated;
    }

    /** Returns below which rate false matches lie (95 %); pictures of one person are no independent comparisons. */
    public double fmrUpper() {
        if (numFalse == 0) {
            return Math.min(1, 3.0 / numPublic);
        }
        double z = 1.645;
        double rate = (double) numFalse / numPublic;
        double middle = rate + z * z / (2 * numPublic);
        double half = z * Math.sqrt(rate * (1 - rate) / numPublic + Math.pow(z / (2 * numPublic), 2));
        return Math.min(1, (middle + half) / (1 + z * z / numPublic));
    }

    void write(DataOutputStream out) throws IOException {
        out.writeDouble(value);
        for (int count : new int[] {numFalse, numPublic, numMissed, numMissedReleased, numMated}) {
            out.writeInt(count);
        }
    }

    static PersonalThreshold read(DataInputStream in) throws IOException {
        return new PersonalThreshold(
                in.readDouble(), in.readInt(), in.readInt(), in.readInt(), in.readInt(), in.readInt());
    }
}
