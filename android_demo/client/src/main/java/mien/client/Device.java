package mien.client;

import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.locks.ReentrantLock;
import mien.client.join.FileIdentityKeys;
import mien.client.join.Identity;
import mien.client.join.IdentityKeys;
import mien.client.join.Joining;
import mien.client.log.NoteKey;
import mien.client.model.Blob;
import mien.client.model.Bundle;
import mien.client.model.Graphs;
import mien.client.model.Manifest;
import mien.client.model.Model;
import mien.client.model.ModelStore;
import mien.client.model.ReleaseGuard;
import mien.client.people.Decision;
import mien.client.people.Gallery;
import mien.client.people.Numbers;
import mien.client.people.Personalised;
import mien.client.people.Recogniser;
import mien.client.people.StayingOut;
import mien.client.rounds.Attempts;
import mien.client.rounds.Conditions;
import mien.client.rounds.Event;
import mien.client.rounds.Journal;
import mien.client.rounds.Leaving;
import mien.client.rounds.Listener;
import mien.client.rounds.LogFiles;
import mien.client.rounds.Outcome;
import mien.client.rounds.Participant;
import mien.client.rounds.RoundLog;
import mien.client.secagg.RandomBytes;
import mien.client.server.CoordinatorClient;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.HomeLock;
import mien.client.store.KeyProvider;
import mien.client.store.Vault;
import mien.client.tasks.Agreement;
import mien.client.train.GraphRuntime;
import mien.client.train.OrtEngine;
import mien.client.wire.Bytes;
import mien.client.wire.Invite;
import mien.client.wire.Retry;

/**
 * One device's home, and all that an app does with it: join, enrol, verify, take part in rounds, renew, leave.
 *
 * <pre>
 * home/identity.json      who this device is           models/   by hash
 * home/gallery/           sealed records of people     graphs/   by hash, of the release or put there
 * home/rounds/            what was trained, sealed     sums/     the log of private sums, sealed
 * home/journal/           what happened, sealed        participation.json   whether this device asked to stay out
 * home/log/               what was seen of the log     log-evidence.json    lies about the log, to hand on
 * home/numbers.json       the last person's number     lock      held while a device is open
 * </pre>
 *
 * Only {@link #join}, {@link #update}, {@link #participate}, {@link #renew}, {@link #tellParticipation} and
 * {@link #connect} use the network; they block, so an app calls them off its main thread. All methods may be called
 * from any thread; every error is a {@link MienException} that says what to do. A home is one device's until
 * {@link #close}, or the end of the process.
 */
public final class Device implements AutoCloseable {
    private static final int LONGEST_NAME = 1_000;

    final Gallery gallery;
    final Attempts attempts;
    final Journal journal;
    final LogFiles logFiles;
    final StayingOut stayingOut;
    private final Folder home;
    private final HomeLock lock;
    private final Vault rounds;
    private final ModelStore models;
    private final Joining joining;
    private final Clock clock;
    private final Random random;
    private final ReentrantLock busy = new ReentrantLock();
    private final CoordinatorClient.LastAddress lastAddress;
    private Recogniser recogniser;
    private OrtEngine engine;
    private String engineOf = "";

    /** Opens a device's home as an app wants it; {@code Device.at(path).keys(...).identityKeys(...).open()}. */
    public static final class Builder {
        private final Path path;
        private KeyProvider keys;
        private IdentityKeys identityKeys;
        private boolean isInFiles;
        private Clock clock = Clock.system();
        private Random random = new Random();

        private Builder(Path path) {
            this.path = path;
        }

        /** Has records sealed by these keys: a phone's key store, say. */
        public Builder keys(KeyProvider sealing) {
            keys = sealing;
            return this;
        }

        /** Has the device prove who it is by one of these. */
        public Builder identityKeys(IdentityKeys named) {
            identityKeys = named;
            return this;
        }

        /** Keeps all keys in private files of the home: whoever can read it can read what they seal. For JVMs without a key store. */
        public Builder keysInFiles() {
            keys = null;
            identityKeys = null;
            isInFiles = true;
            return this;
        }

        /** Goes by another clock than the system's. */
        public Builder clock(Clock by) {
            clock = by;
            return this;
        }

        /** Jitters pauses by this; keys, masks and noise come from the system's secure generator whatever it is. */
        public Builder random(Random by) {
            random = by;
            return this;
        }

        /**
         * Opens the home, which is made where there is none. Reads files, and keys: not for a main thread. Throws CONFIG
         * without keys, IN_USE while another program, or another device of this one, has the home open.
         */
        public Device open() {
            if (!isInFiles && (keys == null || identityKeys == null)) {
                throw new MienException(
                        ErrorCode.CONFIG, "a device needs keys: call keys and identityKeys, or keysInFiles, before open");
            }
            Folder home = new Folder(path);
            HomeLock lock = new HomeLock(home); // before any file: who has the home may be in the midst of writing one
            boolean opened = false;
            try {
                KeyProvider sealing = keys == null ? new FileKeyProvider(home.folder("keys")) : keys;
                IdentityKeys signing =
                        identityKeys == null
                                ? new FileIdentityKeys(new Vault(home.folder("key"), sealing, "identity"))
                                : identityKeys;
                Device device = new Device(home, lock, sealing, signing, clock, random);
                opened = true;
                return device;
            } finally {
                if (!opened) {
                    lock.close();
                }
            }
        }
    }

    /** Returns what opens the home in a folder. */
    public static Builder at(Path home) {
        return new Builder(home);
    }

    private Device(
            Folder home, HomeLock lock, KeyProvider keys, IdentityKeys identityKeys, Clock clock, Random random) {
        this.home = home;
        this.lock = lock;
        this.clock = clock;
        this.random = random;
        gallery = new Gallery(new Vault(home.folder("gallery"), keys, "gallery"), new Numbers(home));
        rounds = new Vault(home.folder("rounds"), keys, "rounds");
        attempts = new Attempts(new Vault(home.folder("sums"), keys, "sums"));
        journal = new Journal(new Vault(home.folder("journal"), keys, "journal"));
        logFiles = new LogFiles(new Vault(home.folder("log"), keys, "log"), home);
        stayingOut = new StayingOut(home, gallery);
        lastAddress = new CoordinatorClient.LastAddress(home);
        models = new ModelStore(home.folder("models"));
        joining = new Joining(home, identityKeys, clock, random);
        forgetWithdrawn();
    }

    /** Gives the home to others; this device is not used afterwards. */
    @Override
    public void close() {
        attempts.letGo();
        releaseEngine();
        lock.close();
    }

    private void forgetWithdrawn() {
        try {
            Participant.forgetWithdrawn(gallery, rounds);
        } catch (MienException error) {
            // Keys may be out of reach now; nothing is sent of it without asking again.
        }
    }

    // The fleet

    /**
     * Joins by an invite's URL; the same one again gives the same identity. Another invite of the same fleet makes this home
     * another device of it, where the key of the identity is gone or was attested for its own invite: people, models and the
     * log of sums stay. Throws NOT_ATTESTED where the fleet wants more of the key than the phone's hardware attests.
     */
    public Identity join(String url) {
        return Edge.run(() -> join(Invite.parse(url)));
    }

    /** Joins by an invite whose code was compared; as {@link #join(String)}. */
    public Identity join(Invite invite) {
        return Edge.run(
                () -> {
                    // What the coordinator knows, and what was trained for it, is of the device that this one was.
                    Runnable beforeOther =
                            () -> {
                                stayingOut.told(false);
                                Participant.forgetUnsettled(rounds, attempts);
                            };
                    return joining.join(invite, beforeOther);
                });
    }

    /** Returns whether the key of this device's certificate is gone, so that it has to join again. */
    public boolean hasLostKey() {
        return hasJoined() && known() == null;
    }

    /** Returns who this device is, null before it has joined and where its key is gone. */
    Identity known() {
        return joining.loadUnlessLost();
    }

    /** Returns this device's id in its fleet, also where its key is gone; empty before it has joined. */
    public String deviceId() {
        return joining.deviceId();
    }

    /** Returns whether this device was let into a fleet, also where its key is gone since. */
    public boolean hasJoined() {
        return joining.hasJoined();
    }

    /** Returns who this device is in its fleet; throws INVITE before it has joined. */
    public Identity identity() {
        return joining.load();
    }

    /** Gets the next certificate now; {@link #connect} does it by itself when a third of its life is left. */
    public Identity renew() {
        return Edge.run(() -> joining.renew(Retry.PATIENT_MS));
    }

    /**
     * Leaves the fleet: asks to be left out of rounds, destroys everything of {@link #wipe}, then the identity; what was
     * seen of the fleet's log is forgotten, and evidence of lies put aside. Returns whether the coordinator was told; where
     * it was not, the operator has to be asked to revoke this device.
     */
    public boolean leave() {
        wipe();
        boolean told = tellParticipation();
        joining.leave();
        logFiles.beginAnew();
        home.delete(StayingOut.FILE);
        lastAddress.forget();
        return told;
    }

    /** Returns where this device stands, without asking the network. */
    public Status status() {
        return new Status(this);
    }

    // People

    /** Returns everybody enrolled, also whose record is damaged: they take no part in anything until they are removed. */
    public List<Gallery.Person> people() {
        return gallery.people();
    }

    /** Returns one person; also whose record is damaged; throws NOT_ENROLLED. */
    public Gallery.Person person(int id) {
        return gallery.person(id);
    }

    /**
     * Enrols a person from aligned crops (112 x 112, RGB) with the model in use; returns their number. {@code agrees} is
     * the person's own consent that their pictures train. Throws NOT_FOUND before the first update, and what {@link
     * Recogniser#checkStored} throws.
     */
    public int enrol(String name, byte[][] crops, boolean agrees) {
        return enrol(name, crops, agrees, false);
    }

    /** As {@link #enrol(String, byte[][], boolean)}; with {@code anyway} nobody is compared with anybody. */
    public int enrol(String name, byte[][] crops, boolean agrees, boolean anyway) {
        if (name.length() > LONGEST_NAME) {
            throw new MienException(ErrorCode.CONFIG, "the name is longer than is kept; choose a shorter one");
        }
        Recogniser now = recogniser();
        float[] template = now.template(crops);
        if (!anyway) {
            now.checkStored(template, Recogniser.NOBODY);
        }
        int id = gallery.enrol(name, crops, template, now.model.modelId, clock.unixMs(), agrees);
        if (agrees) {
            stayingOut.afterAgreement();
        }
        return id;
    }

    /** Adds one more sitting of a person: another day, with glasses. Throws what {@link Recogniser#checkStored} throws. */
    public void add(int person, byte[][] crops) {
        add(person, crops, false);
    }

    /** As {@link #add(int, byte[][])}; with {@code anyway} nobody is compared with anybody. */
    public void add(int person, byte[][] crops, boolean anyway) {
        Recogniser now = recogniser();
        float[] template = now.template(crops);
        if (!anyway) {
            now.checkStored(template, person);
        }
        gallery.add(person, crops, template, now.model.modelId);
    }

    /**
     * Gives or withdraws a person's consent to training. Withdrawal also removes what training kept of them and an update
     * that was not sent; what is in a sum cannot be taken back. When nobody agrees any more the coordinator is asked to
     * leave this device out: call {@link #tellParticipation}, or the next connection tells it.
     */
    public void setConsent(int person, boolean agrees) {
        if (agrees) {
            gallery.setConsent(person, true, clock.unixMs());
            stayingOut.afterAgreement();
        } else {
            stayingOut.before(person);
            try {
                gallery.setConsent(person, false, clock.unixMs());
            } finally {
                Participant.forgetOf(person, rounds, attempts);
            }
        }
    }

    /** Removes a person with crops, templates and what training kept of them; else as withdrawing consent. */
    public void remove(int person) {
        stayingOut.before(person);
        gallery.remove(person);
        Participant.forgetOf(person, rounds, attempts);
    }

    /**
     * Destroys gallery, journal and what was trained, their keys first. The identity stays, and the log of sums, for it
     * tells what has left. The coordinator is told to leave this device out as in {@link #setConsent}.
     */
    public void wipe() {
        stayingOut.beforeWipe();
        gallery.wipe();
        rounds.wipe();
        attempts.letGo();
        journal.wipe();
        synchronized (this) {
            recogniser = null;
        }
    }

    /**
     * Tells the coordinator whether this device stays out of rounds, if that is still to be told; returns whether nothing
     * is left to tell. False while offline: then the next connection that succeeds tells it.
     */
    public boolean tellParticipation() {
        if (!hasJoined() || !stayingOut.isToTell()) {
            return true;
        }
        try {
            connect().close();
            return true;
        } catch (MienException error) {
            return false; // revoked, expired or away: what was withdrawn here stays withdrawn all the same
        }
    }

    // Recognising

    /** Returns whether an aligned crop shows one enrolled person: theirs, or unknown. */
    public Decision verify(int person, byte[] crop) {
        return recogniser().verify(person, crop);
    }

    /** Returns who of the gallery an aligned crop shows, if anybody. */
    public Decision identify(byte[] crop) {
        return recogniser().identify(crop);
    }

    /**
     * Fits the model to everybody here who agreed to training, by the public faces that it came with, and uses what comes of it
     * where it is better; it never leaves this device, and is fitted again after each release. Throws as {@link
     * Recogniser#personalise}.
     */
    public Personalised personalise() {
        Recogniser now = recogniser();
        return now.personalise(models.loadShard(now.model));
    }

    /** Goes back to the released model; returns whether there was a personal one. */
    public boolean forgetPersonal() {
        return gallery.forgetPersonal();
    }

    /** Fits the personal model to another release; until that works the release itself serves. */
    private void fitAgain(Recogniser next) {
        try {
            next.personalise(models.loadShard(next.model));
        } catch (MienException error) {
            if (error.code().isOutOfReach()) {
                throw error;
            }
            // Too few pictures or faces, or people changed meanwhile: personalise() says so to whoever asks for it.
        }
    }

    /**
     * Returns what embeds and compares with the model in use; throws NOT_FOUND before the first update, KEY_LOST where the
     * gallery never opens again.
     */
    public synchronized Recogniser recogniser() {
        String modelId = gallery.modelId();
        if (modelId == null) {
            gallery.requireNotLost();
        }
        if (recogniser == null || !recogniser.model.modelId.equals(modelId)) {
            Model model = models.load(modelId == null ? "" : modelId);
            recogniser = recogniser(model);
        }
        return recogniser;
    }

    private Recogniser recogniser(Model model) {
        return new Recogniser(model, runtime(model), gallery);
    }

    /** One engine serves all models of a layout; another one where other graphs came. */
    private synchronized GraphRuntime runtime(Model model) {
        Folder folder = graphsOf(model.spec.layout.sha256);
        byte[] list = folder.read(Graphs.LIST);
        String present = model.spec.layout.sha256 + (list == null ? "" : Bytes.hex(Bytes.sha256(list)));
        if (engine == null || !present.equals(engineOf)) {
            releaseEngine();
            engine = new OrtEngine(new Graphs(folder, model.spec.layout), 1);
            engineOf = present;
        }
        return new GraphRuntime(model.spec, engine);
    }

    /** Gives back what loaded graphs hold, which is most of what training takes; they are loaded again when needed. */
    private synchronized void releaseEngine() {
        if (engine != null) {
            engine.close();
        }
    }

    // Models

    /**
     * Fetches the released model with its graphs, checked, and re-embeds the gallery with it in one switch; the old one
     * serves until then. Returns whether another model is in use now. Throws DRAINING while another thread takes part in a
     * round: it updates afterwards.
     */
    public boolean update() {
        return update(Retry.PATIENT_MS);
    }

    /**
     * The same, which gives up once there was no progress for so long: {@link Retry#AT_A_SCREEN_MS} where somebody waits to be
     * told. What was fetched stays, and the next call goes on from there.
     */
    public boolean update(long patienceMs) {
        if (!busy.tryLock()) {
            throw new MienException(
                    ErrorCode.DRAINING, "this device takes part in a round now, and updates by itself after it");
        }
        try (CoordinatorClient client = connect(patienceMs)) {
            return Edge.run(() -> update(client, () -> {}));
        } finally {
            busy.unlock();
        }
    }

    private boolean update(CoordinatorClient client, Runnable uncosigned) {
        Manifest manifest = client.manifest("");
        ReleaseGuard guard = new ReleaseGuard(client.identity.releaseKey, home);
        Bundle signed = guard.check(manifest);
        lookUp(client, manifest.modelId, uncosigned);
        Model model = models.fetch(manifest, client);
        if (signed != null) {
            fetchGraphs(client, signed);
        }
        Recogniser next = recogniser(model);
        guard.accept(signed);
        String before = gallery.modelId();
        boolean changes = !model.modelId.equals(before);
        boolean wasPersonal = before != null && gallery.hasPersonal();
        if (changes) {
            gallery.reembed(model.modelId, next::template);
        }
        if (wasPersonal && !next.isPersonal()) {
            fitAgain(next);
        }
        synchronized (this) {
            recogniser = next; // thresholds may be new where the model is not
        }
        if (changes && pendingRound().isEmpty()) {
            models.keepOnly(model.modelId);
        }
        return changes;
    }

    /** Returns once the log of rounds holds the release of a model that is not in use here yet, or throws. */
    private void lookUp(CoordinatorClient client, String modelId, Runnable uncosigned) {
        RoundLog log = roundLog(client.identity);
        if (log == null || modelId.equals(gallery.modelId())) {
            return;
        }
        Outcome wait =
                log.checkRelease(
                        firstSize -> client.proveRelease(modelId, firstSize),
                        modelId,
                        client.identity.population,
                        uncosigned);
        if (wait != null) {
            throw new MienException(ErrorCode.UNREACHABLE, wait.reason);
        }
    }

    private void fetchGraphs(CoordinatorClient client, Bundle signed) {
        Map<String, Blob> graphs = signed.graphs();
        Blob list = graphs.get(Graphs.LIST);
        if (list == null) {
            return; // what somebody put there stays in use
        }
        Folder folder = graphsOf(signed.layoutSha256);
        Set<String> signedNames = new HashSet<>();
        for (Map.Entry<String, Blob> file : graphs.entrySet()) {
            ModelStore.fetch(file.getValue(), folder, client, "graph " + file.getKey());
            signedNames.add(file.getValue().sha256);
        }
        folder.write(Graphs.LIST, folder.read(list.sha256)); // last, so that it names only what is there
        for (String name : folder.names()) {
            if (Bytes.isSha256(name) && !signedNames.contains(name)) {
                folder.delete(name);
            }
        }
    }

    private Folder graphsOf(String layoutSha256) {
        return home.folder("graphs").folder(layoutSha256);
    }

    // Taking part

    /**
     * Takes part in one round, or returns why not now; after a round the released model is taken over. Where the phone may
     * not work, or another thread takes part, nothing is sent. The journal keeps how it ended.
     *
     * <p>Throws what {@link Participant#step} throws, and what {@link #connect} does; that is in the journal too. Whoever
     * interrupts the thread while it waits has it end, too: by the outcome NOT_NOW, and the next call goes on with what was
     * trained. {@link #participation} does the same for an app that wants to go on meanwhile.
     */
    public Outcome participate(Agreement agreement, Conditions conditions, Listener listener) {
        if (!busy.tryLock()) {
            return Outcome.notNow("busy");
        }
        try {
            Outcome outcome = Edge.run(() -> step(agreement, conditions, listener));
            journal.note(outcome, clock.unixMs());
            return outcome;
        } catch (MienException error) {
            if (error.code() == ErrorCode.CANCELLED) {
                return stopped(conditions);
            }
            journal.note(error, clock.unixMs());
            throw error;
        } finally {
            releaseEngine();
            busy.unlock();
        }
    }

    private Outcome stopped(Conditions conditions) {
        List<String> unmet = conditions.unmet();
        Outcome outcome = Outcome.notNow(unmet.isEmpty() ? Participation.CANCELLED : String.join(", ", unmet));
        journal.note(outcome, clock.unixMs());
        return outcome;
    }

    /**
     * Returns one try at a round as {@link #participate} makes it, for an app to run on an executor of its own and to cancel
     * when it likes; nothing has begun yet.
     */
    public Participation participation(Agreement agreement, Conditions conditions, Listener listener) {
        return new Participation(
                own -> participate(agreement, () -> own.withOwn(conditions.unmet()), own.watching(listener)));
    }

    private Outcome step(Agreement agreement, Conditions conditions, Listener listener) {
        String unmet = String.join(", ", conditions.unmet());
        if (!unmet.isEmpty()) {
            return Outcome.notNow(unmet);
        }
        try (CoordinatorClient client = connect()) {
            client.askBeforePieces(() -> Leaving.unlessMet(conditions));
            Outcome outcome = participant(client, agreement, conditions, listener).step();
            if (outcome.round != null) {
                updateAfter(client, conditions, listener);
            }
            return outcome;
        }
    }

    private void updateAfter(CoordinatorClient client, Conditions conditions, Listener listener) {
        try {
            Edge.run(() -> conditions.unmet().isEmpty() && update(client, () -> listener.on(Event.UNCOSIGNED)));
        } catch (MienException error) {
            if (error.code() == ErrorCode.TRANSPARENCY) {
                journal.note(error, clock.unixMs());
            }
            tellPostponed(listener);
        }
    }

    /** Tells that the model that is here stays in use; an app that fails at it does not undo the round, which is settled. */
    private void tellPostponed(Listener listener) {
        try {
            Edge.run(
                    () -> {
                        listener.on(Event.UPDATE_POSTPONED);
                        return null;
                    });
        } catch (MienException error) {
            journal.note(error, clock.unixMs());
        }
    }

    /** Has the journal keep an error that the program around this device met, as it keeps those of rounds. */
    public void note(MienException error) {
        journal.note(error, clock.unixMs());
    }

    /** Returns the evidence of lies about the log of rounds, to hand on: JSON of hashes and signatures; empty where there is none. */
    public String evidence() {
        return logFiles.evidence();
    }

    /** Returns what takes part in rounds over an open connection. */
    Participant participant(
            CoordinatorClient client, Agreement agreement, Conditions conditions, Listener listener) {
        SecureRandom secure = new SecureRandom();
        RandomBytes chance =
                size -> {
                    byte[] bytes = new byte[size];
                    secure.nextBytes(bytes);
                    return bytes;
                };
        return new Participant(
                client, gallery, rounds, attempts, models, this::runtime, agreement, conditions, clock, chance, listener,
                roundLog(client.identity));
    }

    /** Returns the check of rounds against the log; null for a device that was told no witness's key yet. */
    private RoundLog roundLog(Identity identity) {
        return identity.witnessKey.isEmpty()
                ? null
                : new RoundLog(
                        NoteKey.parse(identity.witnessKey),
                        identity.further,
                        logFiles,
                        () -> joining.registrarAnswers(identity),
                        clock);
    }

    long now() {
        return clock.unixMs();
    }

    String pendingRound() {
        return Participant.pendingRound(rounds);
    }

    /**
     * Opens a connection to the coordinator, on which both have said hello; the certificate is renewed before, where
     * little of it is left, and what the coordinator has not been told of participation is told.
     */
    public CoordinatorClient connect() {
        return connect(Retry.PATIENT_MS);
    }

    /** The same, on which every call is repeated until there was no progress for so long. */
    public CoordinatorClient connect(long patienceMs) {
        return Edge.run(() -> opened(patienceMs));
    }

    private CoordinatorClient opened(long patienceMs) {
        CoordinatorClient client =
                new CoordinatorClient(freshIdentity(patienceMs), clock, random, journal::count, lastAddress, patienceMs);
        boolean done = false;
        try {
            client.hello();
            if (stayingOut.isToTell()) {
                boolean staysOut = stayingOut.wanted();
                client.setParticipation(staysOut);
                stayingOut.told(staysOut);
            }
            done = true;
            return client;
        } finally {
            if (!done) {
                client.close();
            }
        }
    }

    private Identity freshIdentity(long patienceMs) {
        Identity identity = identity();
        if (!joining.isRenewalDue(identity)) {
            return identity;
        }
        try {
            return joining.renew(patienceMs);
        } catch (MienException error) {
            if (!error.code().isTransient()) {
                throw error;
            }
            joining.checkPeriod(identity); // it may have days left
            return identity;
        }
    }
}
