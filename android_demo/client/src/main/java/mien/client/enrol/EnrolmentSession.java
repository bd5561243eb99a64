package mien.client.enrol;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.KnownFaceException;
import mien.client.MienException;
import mien.client.vision.FaceReader;
import mien.client.vision.Frame;
import mien.client.vision.FrameJudge;
import mien.client.vision.Hint;
import mien.client.vision.Look;
import mien.client.wire.Bytes;

/**
 * One person's enrolment before a camera: pictures in several poses, then everything is stored, or nothing.
 *
 * <p>Consent comes first: there is no session without it. Until {@link #finish} nothing is kept but in memory.
 */
public final class EnrolmentSession {
    /** Fewest pictures that a person is enrolled with. */
    public static final int MIN_IMAGES = 3;

    /** How far an enrolment is. */
    public static final class Progress {
        public final int numTaken;
        public final int numWanted;
        /** How the head is to be held for the next picture; null when all are taken. */
        public final Pose pose;
        /** What keeps a picture from being taken; null where it is the pose alone, or nothing. */
        public final Hint hint;

        Progress(int numTaken, int numWanted, Pose pose, Hint hint) {
            this.numTaken = numTaken;
            this.numWanted = numWanted;
            this.pose = pose;
            this.hint = hint;
        }

        /** Returns what share of the pictures that are wanted in a pose was taken, 0 to 1. */
        public float share(Pose of) {
            return count(of, numTaken) / (float) count(of, numWanted);
        }

        /** Returns how many of so many pictures, one pose after the other, are in one pose. */
        private static int count(Pose of, int number) {
            int poses = Pose.values().length;
            return (number - of.ordinal() + poses - 1) / poses;
        }

        /** Returns whether every picture that is wanted was taken. */
        public boolean isComplete() {
            return numTaken == numWanted;
        }
    }

    /** What enrolling did. */
    public static final class Enrolled {
        /** The number that names the person. */
        public final int person;

        public final int numUsed;
        /** How many pictures were left out, for they do not look like the person in the others. */
        public final int numRefused;

        Enrolled(int person, int numUsed, int numRefused) {
            this.person = person;
            this.numUsed = numUsed;
            this.numRefused = numRefused;
        }
    }

    private final String name;
    private final Consent consent;
    private final FaceReader reader;
    private final Enroller enroller;
    private final int numWanted;
    private final FrameJudge judge = new FrameJudge();
    private final List<byte[]> crops = new ArrayList<>();
    private final Set<String> seen = new HashSet<>();
    private boolean isOver;

    /** Begins; throws CONFIG without consent, without a name, or for fewer pictures than {@link #MIN_IMAGES}. */
    public EnrolmentSession(String name, Consent consent, FaceReader reader, Enroller enroller, int numWanted) {
        if (consent == null) {
            throw new MienException(ErrorCode.CONFIG, "nobody is enrolled who has not agreed; ask them first");
        }
        if (numWanted < MIN_IMAGES) {
            throw new MienException(
                    ErrorCode.CONFIG, numWanted + " pictures are too few to enrol with; take at least " + MIN_IMAGES);
        }
        this.name = Names.clean(name);
        this.consent = consent;
        this.reader = reader;
        this.enroller = enroller;
        this.numWanted = numWanted;
    }

    /** Looks at a picture, takes it where it is good and in the pose that is wanted, and tells how far it is. */
    public synchronized Progress offer(Frame frame) {
        requireOpen();
        if (crops.size() == numWanted) {
            return progress(null);
        }
        Look look = reader.look(frame);
        Hint hint = judge.see(look);
        if (look.isGood() && judge.isReady() && Pose.of(crops.size()).isHeld(look.yawDeg())) {
            byte[] crop = look.crop();
            if (seen.add(Bytes.hex(Bytes.sha256(crop)))) {
                crops.add(crop);
            }
        }
        return progress(hint);
    }

    /** Returns how far it is. */
    public synchronized Progress progress() {
        return progress(null);
    }

    private Progress progress(Hint hint) {
        int count = crops.size();
        return new Progress(count, numWanted, count == numWanted ? null : Pose.of(count), hint);
    }

    /**
     * Stores the person with all pictures that look like one another. Throws LOW_QUALITY, and stores nobody, where fewer
     * than {@link #MIN_IMAGES} do or where they show two people, and what the {@link Enroller} throws. The session is
     * over either way, but after a {@link KnownFaceException}: then it may be finished {@code anyway}, or cancelled.
     */
    public Enrolled finish() {
        return finish(false);
    }

    /** As {@link #finish()}; with {@code anyway} the person is compared with nobody who is enrolled. */
    public synchronized Enrolled finish(boolean anyway) {
        requireOpen();
        if (crops.size() < numWanted) {
            throw new MienException(
                    ErrorCode.CONFIG, crops.size() + " of " + numWanted + " pictures are taken; go on, or cancel");
        }
        boolean isToAsk = false;
        try {
            byte[][] taken = crops.toArray(new byte[0][]);
            byte[][] used = ofOnePerson(taken);
            return new Enrolled(enroller.enrol(name, used, consent, anyway), used.length, taken.length - used.length);
        } catch (KnownFaceException known) {
            isToAsk = true;
            throw known;
        } finally {
            if (!isToAsk) {
                cancel();
            }
        }
    }

    private byte[][] ofOnePerson(byte[][] taken) {
        float[][] features = enroller.embed(taken);
        int[] same = Strangers.without(features, enroller.threshold());
        if (Strangers.secondGroup(features, same, enroller.threshold()).length > 0) {
            throw new MienException(
                    ErrorCode.LOW_QUALITY,
                    "the pictures seem to show different people; nobody was enrolled: take all of one person, alone before "
                            + "the camera");
        }
        if (same.length < MIN_IMAGES) {
            throw new MienException(
                    ErrorCode.LOW_QUALITY,
                    same.length + " of " + taken.length + " pictures look like one person, " + MIN_IMAGES
                            + " are needed; nobody was enrolled: take all of one person, in good light");
        }
        byte[][] used = new byte[same.length][];
        for (int i = 0; i < used.length; i++) {
            used[i] = taken[same[i]];
        }
        return used;
    }

    /** Ends without storing anything; what was taken is overwritten. */
    public synchronized void cancel() {
        isOver = true;
        for (byte[] crop : crops) {
            Arrays.fill(crop, (byte) 0);
        }
        crops.clear();
        seen.clear();
    }

    private void requireOpen() {
        if (isOver) {
            throw new MienException(ErrorCode.CONFIG, "this enrolment is over; begin another one");
        }
    }
}
