package mien.client.secagg;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/**
 * A device's side of one attempt: each step takes the coordinator's message and returns the device's answer.
 *
 * <pre>
 * INVITED --advertise--> ADVERTISED --share--> SHARED --mask--> MASKED --agree--> AGREED --unmask--> DONE
 *     after any error, or {@link #forget}: LEFT
 * </pre>
 *
 * A device believes nobody. It checks each message against what it knows itself, releases shares once, and never both
 * shares of one neighbour. Whatever is wrong throws, ends the attempt and destroys its secrets: to a lying server that
 * is one more drop-out. Chance is drawn in this order: mask key 32, share key 32, KEM seed 64, nonce 32; b 32,
 * coefficients for b, coefficients for the mask key, 32 for each neighbour's encapsulation; seed of the rounding words 32.
 */
public final class DeviceRound {
    private enum State { INVITED, ADVERTISED, SHARED, MASKED, AGREED, DONE, LEFT }

    /** A step of the protocol, from a state that it may be taken in. */
    private interface Step<T> {
        T take();
    }

    public final RoundConfig config;
    private final SumIdentity identity;
    private final Policy policy;
    private final VerifyLeaf verify;
    private final AttemptLog log;
    private final RandomBytes random;

    private State state = State.INVITED;
    private Entry own;
    private byte[] maskSecret = new byte[0];
    private byte[] shareSecret = new byte[0];
    private Kem kem;
    private byte[] b = new byte[0];
    private Roster roster;
    private PeerCount peers;
    private BitSet sharers;
    private BitSet survivors;
    /** Neighbours' shares of b and of the mask key, and their parts, by index. */
    private final Map<Integer, byte[]> held = new TreeMap<>();

    /**
     * Checks message 0 and begins the attempt.
     *
     * <p>Throws CONFIG for terms that the owner has not agreed to, MODEL_MISMATCH, LAYOUT_MISMATCH or VIOLATION for
     * another model, layout or task than the device holds, REPLAY for an attempt that is not new.
     */
    public DeviceRound(
            byte[] invite,
            SumIdentity identity,
            Expected expected,
            Policy policy,
            VerifyLeaf verify,
            AttemptLog log,
            RandomBytes random) {
        config = RoundConfig.ofInvite(invite);
        checkInvite(config, expected, policy);
        this.identity = identity;
        this.policy = policy;
        this.verify = verify;
        this.log = log;
        this.random = random;
        log.begin(config);
    }

    @Override
    public String toString() {
        return "DeviceRound(" + config.attemptId + ", " + state + ")";
    }

    /** Destroys the attempt's secrets: nobody can have shares from this device any more. Call it at the deadline. */
    public void forget() {
        erase();
        if (state != State.DONE) {
            state = State.LEFT;
        }
    }

    /** Returns whether this attempt was left, or its secrets were destroyed. */
    public boolean isLeft() {
        return state == State.LEFT;
    }

    /** Returns how many neighbours count towards the owner's floor; null before a roster. */
    public PeerCount peers() {
        return peers;
    }

    // The steps

    /** Returns message 1: fresh keys and a nonce, signed together with the configuration. */
    public byte[] advertise() {
        return step(
                State.INVITED,
                State.ADVERTISED,
                () -> {
                    maskSecret = random.take(Keys.KEY_BYTES);
                    shareSecret = random.take(Keys.KEY_BYTES);
                    kem = new Kem(random.take(Kem.SEED_BYTES));
                    byte[] nonce = random.take(Keys.KEY_BYTES);
                    byte[] signature = Keys.sign(identity.signer, entry(nonce, new byte[0]).statement(config.sha256()));
                    own = entry(nonce, signature);
                    return MessageReader.message(MessageReader.ADVERTISE, own.toBytes());
                });
    }

    /**
     * Returns message 3: for each neighbour shares of b and of the mask key, and its part, sealed for it alone. Throws COHORT
     * for fewer neighbours whom the owner counts than the floor needs.
     */
    public byte[] share(byte[] message) {
        return step(
                State.ADVERTISED,
                State.SHARED,
                () -> {
                    roster = Roster.read(message, config, own, verify);
                    Graph.check(config.profile, roster.topology.size(), roster.topology.hood);
                    checkAdmissions();
                    b = random.take(Keys.KEY_BYTES);
                    byte[] sealed = sealAll();
                    byte[] commitment = Keys.commitment(b, roster.binding(), own.id);
                    byte[] statement = Canonical.hash("shares", roster.binding(), own.id, sealed, commitment);
                    byte[] signature = Keys.sign(identity.signer, statement);
                    return MessageReader.message(MessageReader.SHARES, sealed, commitment, signature);
                });
    }

    /** Returns message 5 and the vector: the addends, rounded, under this device's masks. */
    public MaskedInput mask(byte[] message, Addends said) {
        return step(
                State.SHARED,
                State.MASKED,
                () -> {
                    openAll(message);
                    int[] vector =
                            VectorCodec.encode(
                                    said, config, roster.binding(), new WordStream(random.take(Keys.KEY_BYTES)));
                    log.recordMasked(config.attemptId);
                    byte[] covers = addMasks(vector);
                    byte[] payload = VectorCodec.pack(vector, config.numbers.ringBits);
                    byte[] digest = Bytes.sha256(payload);
                    byte[] sharersHash = Canonical.membersHash(sharers, roster.topology.size());
                    byte[] statement = Canonical.hash("masked", roster.binding(), sharersHash, digest, covers);
                    byte[] signature = Keys.sign(identity.signer, statement);
                    eraseOwn();
                    byte[] answer = MessageReader.message(MessageReader.MASKED, digest, covers, signature);
                    return new MaskedInput(answer, payload);
                });
    }

    /**
     * Returns message 7: a signature over who shared and who survived, as this device was told. Under the
     * honest-but-curious profile there is no such round: the answer is message 9 at once.
     */
    public byte[] agree(byte[] message) {
        boolean hasRound = config.profile.hasConsistencyRound();
        return step(
                State.MASKED,
                hasRound ? State.AGREED : State.DONE,
                () -> {
                    survivors = readSurvivors(message);
                    return hasRound
                            ? MessageReader.message(
                                    MessageReader.CONSISTENCY, Keys.sign(identity.signer, consistency()))
                            : release();
                });
    }

    /** Returns message 9: one share of each neighbour, once enough of them have signed the same lists. */
    public byte[] unmask(byte[] message) {
        return step(
                State.AGREED,
                State.DONE,
                () -> {
                    checkProof(message);
                    return release();
                });
    }

    /**
     * Takes a step from the state where it belongs; if it throws, the attempt is left. Where a key store is out of reach
     * nothing was said: the step may be taken again, unless its sum is noted already.
     */
    private <T> T step(State from, State to, Step<T> step) {
        if (state == State.DONE) {
            throw new MienException(
                    ErrorCode.REPLAY, "this device has released its shares for this attempt; check in again");
        }
        if (state == State.LEFT) {
            throw new MienException(ErrorCode.LATE, "this device has left this attempt; nothing is lost, check in again");
        }
        boolean done = false;
        try {
            if (state != from) {
                throw violation("the coordinator skipped or repeated a step (" + state + ")");
            }
            T answer = step.take();
            state = to;
            done = true;
            return answer;
        } catch (MienException error) {
            done = error.code().isOutOfReach();
            throw error;
        } finally {
            if (!done) {
                forget();
            }
        }
    }

    // What the steps are made of

    private Entry entry(byte[] nonce, byte[] signature) {
        byte[] maskKey = Keys.publicOf(Keys.maskKey(maskSecret));
        byte[] shareKey = Keys.publicOf(shareSecret);
        return new Entry(
                identity.id, maskKey, shareKey, kem.publicKey(), nonce, signature, identity.certificate);
    }

    private byte[] sealAll() {
        Graph.Hood hood = roster.topology.hood;
        byte[][] ofB = Shamir.split(b, hood.t, hood.k, random);
        byte[][] ofKey = Shamir.split(maskSecret, hood.t, hood.k, random);
        List<byte[]> parts = new ArrayList<>();
        parts.add(new byte[] {(byte) hood.k});
        int place = 0;
        for (Roster.Peer peer : roster.neighbours.values()) {
            byte[] part = Keys.part(maskSecret, roster.binding(), own.id, peer.entry.id);
            byte[] plain = Bytes.concat(ofB[place], ofKey[place], part);
            byte[][] encapsulated = Kem.encapsulate(peer.entry.kemKey, random.take(Kem.CHANCE_BYTES));
            parts.add(new byte[] {(byte) (place + 1)});
            parts.add(
                    Keys.seal(
                            shareSecret,
                            peer.entry.shareKey,
                            encapsulated,
                            roster.binding(),
                            own.id,
                            peer.entry.id,
                            plain));
            Arrays.fill(plain, (byte) 0);
            place++;
        }
        return Bytes.concat(parts.toArray(new byte[0][]));
    }

    /**
     * Keeps the neighbours' shares that open. Those that do not are left out: one device that seals nonsense must not
     * take its neighbours out of the round, and the server cannot gain by spoiling them: fewer shares open less.
     */
    private void openAll(byte[] message) {
        Topology topology = roster.topology;
        MessageReader in = new MessageReader(message, MessageReader.DELIVERED);
        sharers = Canonical.unpackMembers(in.take(Canonical.bitmapSize(topology.size())), topology.size());
        int count = in.number(1, Graph.MAX_NEIGHBOURS);
        TreeMap<Integer, Roster.Peer> present = new TreeMap<>(roster.neighbours);
        present.keySet().removeIf(index -> !sharers.get(index));
        byte[][] sealed = new byte[count][];
        int[] x = new int[count];
        for (int i = 0; i < count; i++) {
            x[i] = in.number(1, 255);
            sealed[i] = in.take(Keys.SEALED_BYTES);
        }
        in.end();
        if (!sharers.get(roster.index) || count != present.size()) {
            throw violation("the list of who shared leaves this device or shares for it out");
        }
        if (sharers.cardinality() < config.fewest || present.size() < topology.hood.t) {
            throw new MienException(
                    ErrorCode.COHORT,
                    "only " + sharers.cardinality() + " devices shared their keys; nothing was sent, check in again");
        }
        int at = 0;
        for (Map.Entry<Integer, Roster.Peer> each : present.entrySet()) {
            if (x[at] != topology.graph.shareIndex(each.getKey(), roster.index)) {
                throw violation("the coordinator handed over a share under another's index");
            }
            Entry sender = each.getValue().entry;
            byte[] opened =
                    Keys.open(shareSecret, kem, sender.shareKey, roster.binding(), sender.id, own.id, sealed[at++]);
            if (opened != null) {
                held.put(each.getKey(), opened);
            }
        }
        if (held.size() < topology.hood.t) {
            throw violation("only " + held.size() + " neighbours' shares open");
        }
    }

    /**
     * Adds the own mask and one for each neighbour that shared, the lower id adds, the higher subtracts; returns the
     * covers behind their count. Where a neighbour's part did not arrive, zeros stand for it: who sealed nonsense, or
     * spoiled it on the way, has brought the sum to nothing, and learns nothing by it.
     */
    private byte[] addMasks(int[] vector) {
        byte[] maskKey = Keys.maskKey(maskSecret);
        List<byte[]> covers = new ArrayList<>();
        WordStream.addTo(vector, Keys.selfSeed(b, roster.binding(), own.id), false);
        for (Map.Entry<Integer, Roster.Peer> each : roster.neighbours.entrySet()) {
            if (sharers.get(each.getKey())) {
                Entry peer = each.getValue().entry;
                byte[] opened = held.get(each.getKey());
                byte[] part = new byte[Keys.PART_BYTES];
                if (opened != null) {
                    System.arraycopy(opened, 2 * Keys.SHARE_BYTES, part, 0, part.length);
                }
                boolean isLower = Bytes.compare(own.id, peer.id) < 0;
                if (isLower) {
                    byte[] ownPart = Keys.part(maskSecret, roster.binding(), own.id, peer.id);
                    covers.add(opened == null ? part : Keys.cover(ownPart, part, roster.binding(), own.id, peer.id));
                    part = ownPart;
                }
                byte[] seed = Keys.pairSeed(maskKey, peer.maskKey, part, roster.binding(), own.id, peer.id);
                WordStream.addTo(vector, seed, !isLower);
            }
        }
        return Bytes.concat(new byte[] {(byte) covers.size()}, Bytes.concat(covers.toArray(new byte[0][])));
    }

    private BitSet readSurvivors(byte[] message) {
        Topology topology = roster.topology;
        MessageReader in = new MessageReader(message, MessageReader.SURVIVORS);
        BitSet told = Canonical.unpackMembers(in.take(Canonical.bitmapSize(topology.size())), topology.size());
        in.end();
        BitSet strangers = (BitSet) told.clone();
        strangers.andNot(sharers);
        if (!strangers.isEmpty() || !told.get(roster.index)) {
            throw violation("the list of survivors names strangers or leaves this device out");
        }
        int least = Math.max(config.fewest, topology.hood.t);
        if (told.cardinality() < least || countNeighbours(told) < topology.hood.t) {
            throw new MienException(
                    ErrorCode.COHORT,
                    "the sum would hold " + told.cardinality() + " devices, " + least
                            + " are needed; nothing was released, check in again");
        }
        return told;
    }

    private int countNeighbours(BitSet members) {
        int count = 0;
        for (int index : roster.neighbours.keySet()) {
            count += members.get(index) ? 1 : 0;
        }
        return count;
    }

    private byte[] consistency() {
        int n = roster.topology.size();
        byte[] told = Canonical.membersHash(sharers, n);
        return Canonical.hash("consist", roster.binding(), told, Canonical.membersHash(survivors, n));
    }

    private void checkProof(byte[] message) {
        Topology topology = roster.topology;
        MessageReader in = new MessageReader(message, MessageReader.PROOF);
        int count = in.number(2, Graph.MAX_NEIGHBOURS);
        byte[] statement = consistency();
        Set<Integer> signers = new HashSet<>();
        Map<Integer, byte[]> signatures = new TreeMap<>();
        for (int i = 0; i < count; i++) {
            int index = topology.indexOf(in.take(Canonical.ID_BYTES));
            byte[] signature = in.take(Keys.SIGNATURE_BYTES);
            if (roster.neighbours.containsKey(index) && survivors.get(index)) {
                signers.add(index);
                signatures.put(index, signature);
            }
        }
        in.end();
        if (signers.size() != count || count < topology.hood.t) {
            throw violation(
                    signers.size() + " neighbours have signed the list of survivors, " + topology.hood.t
                            + " are needed; nothing was released");
        }
        for (Map.Entry<Integer, byte[]> each : signatures.entrySet()) {
            Roster.Peer peer = roster.neighbours.get(each.getKey());
            String what = "the list of survivors of device " + Keys.shortName(peer.entry.id);
            Keys.verify(peer.leaf.key, statement, each.getValue(), what);
        }
    }

    /** Returns message 9: of each neighbour that shared, its b's share if it survived, its mask key's if not. */
    private byte[] release() {
        log.recordUnmasked(config.attemptId);
        List<byte[]> parts = new ArrayList<>();
        for (int index : roster.neighbours.keySet()) {
            if (sharers.get(index)) {
                byte[] shares = held.get(index);
                boolean survived = survivors.get(index);
                int kind = shares == null ? 0 : survived ? 1 : 2;
                byte[] share = new byte[Keys.SHARE_BYTES];
                if (shares != null) {
                    System.arraycopy(shares, survived ? 0 : Keys.SHARE_BYTES, share, 0, Keys.SHARE_BYTES);
                }
                parts.add(Bytes.concat(new byte[] {(byte) kind}, share));
            }
        }
        byte[] count = {(byte) parts.size()};
        erase();
        return MessageReader.message(MessageReader.UNMASK, count, Bytes.concat(parts.toArray(new byte[0][])));
    }

    private void eraseOwn() {
        if (kem != null) {
            kem.destroy();
        }
        for (byte[] secret : new byte[][] {b, maskSecret, shareSecret}) {
            Arrays.fill(secret, (byte) 0);
        }
    }

    private void erase() {
        eraseOwn();
        for (byte[] shares : held.values()) {
            Arrays.fill(shares, (byte) 0);
        }
        held.clear();
    }

    private void checkAdmissions() {
        peers = policy.count(roster.neighbours.values());
        int needed = Math.min(policy.minCohort - 1, peers.total);
        if (peers.old + peers.attested < needed) {
            throw new MienException(
                    ErrorCode.COHORT,
                    (peers.old + peers.attested) + " of the " + peers.total
                            + " phones that this one shares keys with were admitted long enough ago" + policy.orAttested()
                            + ", " + needed + " are needed; nothing was sent, this phone waits for another cohort");
        }
    }

    private static void checkInvite(RoundConfig config, Expected expected, Policy policy) {
        if (!policy.profiles.contains(config.profile)) {
            throw new MienException(
                    ErrorCode.CONFIG, "this round assumes a profile that this device has not agreed to; stay out of it");
        }
        if (config.fewest < policy.minCohort) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "this round opens sums over " + config.fewest + " devices; this device agrees to " + policy.minCohort
                            + " or more");
        }
        if (config.suite != RoundConfig.SUITE_ECDSA_P256) {
            throw new MienException(ErrorCode.CONFIG, "this round signs with keys that this device has not; join again");
        }
        if (!Arrays.equals(config.attemptId.taskId, expected.taskId)
                || !Arrays.equals(config.taskSha256, expected.taskSha256)) {
            throw violation("the round's private sum is for another task than this device was given");
        }
        if (!Arrays.equals(config.modelSha256, expected.modelSha256)
                || !Arrays.equals(config.statementSha256, expected.statementSha256)) {
            throw new MienException(
                    ErrorCode.MODEL_MISMATCH,
                    "the round is for another model or graph than this device holds; fetch the model again");
        }
        if (!Arrays.equals(config.layoutSha256, expected.layoutSha256)
                || config.size != expected.size
                || config.numMetrics != expected.numMetrics) {
            throw new MienException(
                    ErrorCode.LAYOUT_MISMATCH,
                    "the round adds up other lanes than this device makes; use the assigned model");
        }
    }

    private static MienException violation(String why) {
        return new MienException(ErrorCode.VIOLATION, why + "; leave this round");
    }
}
