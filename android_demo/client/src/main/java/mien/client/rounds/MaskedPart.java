package mien.client.rounds;

import java.math.BigInteger;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Predicate;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.join.Identity;
import mien.client.join.LeafVerifier;
import mien.client.secagg.Addends;
import mien.client.secagg.AttemptId;
import mien.client.secagg.AttemptLog;
import mien.client.secagg.DeviceRound;
import mien.client.secagg.Expected;
import mien.client.secagg.MaskedInput;
import mien.client.secagg.PeerCount;
import mien.client.secagg.Policy;
import mien.client.secagg.RandomBytes;
import mien.client.secagg.RoundConfig;
import mien.client.tasks.Agreement;
import mien.client.tasks.ContributionLayout;
import mien.client.tasks.Methods;
import mien.client.tasks.TaskSpec;
import mien.client.wire.Bytes;
import mien.client.wire.RoundRef;
import mien.v1.RoundsOuterClass.Stage;

/**
 * One device in one attempt, from message 0 on; call {@link #forget} at its end, whichever that is.
 *
 * <p>Each stage is answered once; told the same again, it answers with the same bytes, and told something else it
 * leaves. Keys live in memory only: a device whose program ends after it began has left the attempt. A key store out of reach
 * leaves it as it was.
 */
final class MaskedPart {
    /** How long after the end of all stages a device still answers: clocks are not in step. */
    private static final long GRACE_MS = 60_000;

    private static final long DAY_S = 86_400;

    /** What is sent at a stage: a message, and at UPLOAD the masked vector beside it. */
    static final class Answer {
        final byte[] message;
        /** Null but at UPLOAD. */
        final byte[] payload;

        Answer(byte[] message, byte[] payload) {
            this.message = message;
            this.payload = payload;
        }
    }

    private final Identity identity;
    private final Agreement agreement;
    private final AttemptLog log;
    private final Predicate<BigInteger> isRevoked;
    private final Clock clock;
    private final RandomBytes random;
    private final TaskSpec task;
    private final RoundRef ref;
    private final String modelId;
    private final byte[] statement;
    private final ContributionLayout layout;
    private final byte[] contribution;

    private final Map<Stage, byte[]> heard = new HashMap<>();
    private final Map<Stage, Answer> answers = new HashMap<>();
    private boolean hasHelped;
    private DeviceRound round;
    private long endsMs = Long.MAX_VALUE;

    MaskedPart(
            Identity identity,
            Agreement agreement,
            AttemptLog log,
            Predicate<BigInteger> isRevoked,
            Clock clock,
            RandomBytes random,
            TaskSpec task,
            RoundRef ref,
            String modelId,
            byte[] statement,
            ContributionLayout layout,
            byte[] contribution) {
        this.identity = identity;
        this.agreement = agreement;
        this.log = log;
        this.isRevoked = isRevoked;
        this.clock = clock;
        this.random = random;
        this.task = task;
        this.ref = ref;
        this.modelId = modelId;
        this.statement = statement;
        this.layout = layout;
        this.contribution = contribution;
    }

    /** Returns how the log names the attempt. */
    static AttemptId attemptId(RoundRef ref) {
        return new AttemptId(Expected.taskId(ref.taskId), ref.round, ref.attempt);
    }

    /** Returns what this device itself knows of a round: message 0 and the log have to agree with it. */
    static Expected expected(
            RoundRef ref, TaskSpec task, String modelId, byte[] statement, ContributionLayout layout) {
        return new Expected(
                Expected.taskId(ref.taskId),
                task.sha256,
                Bytes.unhex(modelId),
                Bytes.unhex(layout.sha256),
                statement,
                layout.updateSize(),
                layout.numMetrics());
    }

    /** Destroys the secrets and the answers: this device says nothing more in this attempt. */
    void forget() {
        answers.clear();
        if (round != null) {
            round.forget();
        }
    }

    /** Returns whether this is of an attempt. */
    boolean isOf(RoundRef attempt) {
        return ref.message().equals(attempt.message());
    }

    /** Returns whether others wait for what only the keys here can say: from the first of them until the last message went out. */
    boolean isUnderWay() {
        return round != null && !round.isLeft() && !hasHelped;
    }

    /** Has this remember that the last message went out, by which others uncover the sum. */
    void helped() {
        hasHelped = true;
    }

    /** Returns whether nobody waits for a message of this device's any more. */
    boolean hasHelped() {
        return hasHelped;
    }

    /**
     * Returns this device's message of a stage, null where it has no part in it. Throws what {@link DeviceRound} throws,
     * VIOLATION where the coordinator tells another story than before, LATE after the deadlines.
     */
    Answer answer(Stage stage, byte[] told) {
        boolean isPart =
                stage == Stage.KEYS
                        || stage == Stage.SHARES
                        || stage == Stage.UPLOAD
                        || stage == Stage.CONSISTENCY
                        || stage == Stage.UNMASK;
        if (told.length == 0 || !isPart) {
            return null;
        }
        boolean done = false;
        try {
            if (clock.monotonicMs() > endsMs) {
                throw new MienException(
                        ErrorCode.LATE, "the round's deadlines have passed; nothing is lost, check in again");
            }
            byte[] digest = Bytes.sha256(told);
            byte[] before = heard.putIfAbsent(stage, digest);
            if (before != null && !Arrays.equals(before, digest)) {
                throw new MienException(
                        ErrorCode.VIOLATION, "the coordinator told this phone two stories at one stage; leave this round");
            }
            if (!answers.containsKey(stage)) {
                answers.put(stage, step(stage, told));
            }
            done = true;
            return answers.get(stage);
        } catch (MienException error) {
            done = error.code().isOutOfReach(); // asked again it goes on from here
            throw error;
        } finally {
            if (!done) {
                forget();
            }
        }
    }

    private Answer step(Stage stage, byte[] told) {
        if (round == null || stage == Stage.KEYS) {
            return new Answer(advertise(stage, told), null);
        }
        switch (stage) {
            case SHARES:
                return new Answer(round.share(told), null);
            case UPLOAD:
                MaskedInput masked = round.mask(told, said());
                return new Answer(masked.message, masked.payload);
            case UNMASK:
                boolean agreed = round.config.profile.hasConsistencyRound();
                return new Answer(agreed ? round.unmask(told) : round.agree(told), null);
            default:
                return new Answer(round.agree(told), null);
        }
    }

    private Addends said() {
        return task.dp.protect(layout.addends(contribution), round.config, random);
    }

    private Policy policy() {
        int minCohort = Math.max(Methods.fewest(task, agreement.minCohort), task.smallestSum);
        if (agreement.minPeerAgeDays == 0) {
            return new Policy(minCohort, agreement.profiles);
        }
        long admittedByUnixS = Math.floorDiv(clock.unixMs(), 1000L) - DAY_S * agreement.minPeerAgeDays;
        return new Policy(minCohort, agreement.profiles, admittedByUnixS, agreement.countsAttestedPeers);
    }

    /** Returns by which rule peers counted, as a sentence; empty where the owner asks for no age, and before a roster. */
    String peers() {
        PeerCount found = round == null ? null : round.peers();
        if (found == null || agreement.minPeerAgeDays == 0) {
            return "";
        }
        String byAge =
                "Of " + found.total + " phones that this one shared keys with, " + found.old + " counted by "
                        + agreement.minPeerAgeDays + " days of age";
        return agreement.countsAttestedPeers
                ? byAge + ", and " + found.attested + " younger ones by an attested key."
                : byAge + ".";
    }

    private byte[] advertise(Stage stage, byte[] told) {
        if (stage != Stage.KEYS) {
            throw new MienException(
                    ErrorCode.VIOLATION, "the coordinator began a private sum without its terms; leave this round");
        }
        if (round == null) {
            round = begun(told);
            endsMs = clock.monotonicMs() + 1000 * round.config.totalSeconds + GRACE_MS;
        }
        return round.advertise();
    }

    private DeviceRound begun(byte[] told) {
        RoundConfig terms = RoundConfig.ofInvite(told);
        task.dp.checkTerms(terms);
        if (!terms.numbers.isSame(task.numbers(layout, terms.numbers.l2Clip))) {
            throw new MienException(
                    ErrorCode.VIOLATION, "the round clips or rounds updates otherwise than its task says; leave it");
        }
        return new DeviceRound(
                told,
                identity.forSums(),
                expected(ref, task, modelId, statement, layout),
                policy(),
                new LeafVerifier(identity.registrarCa, identity.population, clock, isRevoked),
                log,
                random);
    }
}
