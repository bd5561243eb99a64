package mien.client.rounds;

import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.secagg.AttemptId;
import mien.client.secagg.DpSpec;
import mien.client.secagg.RoundConfig;
import mien.client.wire.Bytes;

/** A sum that this device is or may be in, or is about to be: its terms, and what went into it when. */
final class OwnSum {
    /** Pictures of a sum of which an earlier version of this program noted none: they may have been any. */
    static final byte[] ANY_PICTURES = new byte[32];

    private static final int NOTE_BYTES = 8 + 1 + ANY_PICTURES.length;

    final AttemptId attempt;
    final byte[] modelSha256;
    /** Whether phones themselves add noise that hides one of them; what the coordinator promises to add does not. */
    final boolean isNoised;
    /** Null before the coordinator has told them. */
    final RoundConfig terms;
    /** A hash of the pictures behind this device's part. */
    final byte[] pictures;

    final long unixS;
    /** Whether shares that open the sum went out from here, or its round closed. */
    final boolean isReleased;
    /** Null where an earlier version noted none: it may have been any. */
    final String population;

    private OwnSum(
            AttemptId attempt,
            byte[] modelSha256,
            boolean isNoised,
            RoundConfig terms,
            byte[] pictures,
            long unixS,
            boolean isReleased,
            String population) {
        this.attempt = attempt;
        this.modelSha256 = modelSha256;
        this.isNoised = isNoised;
        this.terms = terms;
        this.pictures = pictures;
        this.unixS = unixS;
        this.isReleased = isReleased;
        this.population = population;
    }

    /** Returns the sum that a round would be, as this device plans it. */
    static OwnSum planned(AttemptId attempt, String modelId, DpSpec dp, byte[] pictures, long unixS) {
        return new OwnSum(
                attempt, Bytes.unhex(modelId), dp.isNoisedByPhones(), null, pictures, unixS, false, null);
    }

    /** Returns the sum that begins under terms; nothing of it has been opened. */
    static OwnSum of(RoundConfig terms, byte[] pictures, long unixS, String population) {
        return of(terms, pictures, unixS, false, population);
    }

    private static OwnSum of(
            RoundConfig terms, byte[] pictures, long unixS, boolean isReleased, String population) {
        return new OwnSum(
                terms.attemptId, terms.modelSha256, terms.isNoisedByPhones(), terms, pictures, unixS, isReleased,
                population);
    }

    /** Returns the same sum, of which shares go out from here. */
    OwnSum released() {
        return of(terms, pictures, unixS, true, population);
    }

    boolean isOf(String wanted) {
        return population == null || wanted == null || population.equals(wanted);
    }

    boolean isOfRound(OwnSum other) {
        return attempt.task().equals(other.attempt.task()) && attempt.round == other.attempt.round;
    }

    /** Returns whether {@code coming} is a later attempt of this sum's round, and no shares for this one left here. */
    boolean isTriedAgainBy(OwnSum coming) {
        return !isReleased && isOfRound(coming) && attempt.attempt < coming.attempt.attempt;
    }

    /** Returns whether the difference of two sums would leave this device's part out, and so tell of the others'. */
    boolean differsByOthersFrom(OwnSum coming) {
        if (isNoised || !Arrays.equals(modelSha256, coming.modelSha256) || isTriedAgainBy(coming)) {
            return false;
        }
        return mayHold(coming.pictures);
    }

    /** Returns whether these pictures are, or may be, what went into it. */
    boolean mayHold(byte[] others) {
        return Arrays.equals(pictures, others)
                || Arrays.equals(pictures, ANY_PICTURES)
                || Arrays.equals(others, ANY_PICTURES);
    }

    /** Returns the terms' canonical bytes, a note of fixed size, and the population. */
    byte[] toBytes() {
        return Bytes.concat(
                terms.toBytes(),
                Bytes.bigEndian(unixS, 8),
                new byte[] {(byte) (isReleased ? 1 : 0)},
                pictures,
                Bytes.utf8(population));
    }

    /** Returns the sum in such bytes, or in the terms alone, as earlier versions kept them. */
    static OwnSum ofBytes(byte[] data) {
        RoundConfig terms = RoundConfig.ofKept(Arrays.copyOf(data, Math.min(data.length, RoundConfig.BYTES)));
        if (data.length == RoundConfig.BYTES) {
            return of(terms, ANY_PICTURES, 0, true, null);
        }
        int note = RoundConfig.BYTES;
        if (data.length < note + NOTE_BYTES) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "the note of a private sum is damaged; restore the whole home from one copy");
        }
        long unixS = 0;
        for (int i = 0; i < 8; i++) {
            unixS = unixS << 8 | data[note + i] & 0xff;
        }
        byte[] pictures = Arrays.copyOfRange(data, note + 9, note + NOTE_BYTES);
        String population = Bytes.text(Arrays.copyOfRange(data, note + NOTE_BYTES, data.length));
        return of(terms, pictures, unixS, data[note + 8] != 0, population);
    }
}
