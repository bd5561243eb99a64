package mien.client.rounds;

import java.math.BigInteger;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Predicate;
import mien.client.Clock;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.join.RevocationList;
import mien.client.model.Blob;
import mien.client.model.Manifest;
import mien.client.model.Model;
import mien.client.model.ModelStore;
import mien.client.model.ParameterPart;
import mien.client.people.Gallery;
import mien.client.people.TrainingState;
import mien.client.secagg.AttemptLog;
import mien.client.secagg.Expected;
import mien.client.secagg.RandomBytes;
import mien.client.server.CoordinatorClient;
import mien.client.server.StageEnds;
import mien.client.store.Vault;
import mien.client.tasks.Agreement;
import mien.client.tasks.ContributionLayout;
import mien.client.tasks.Disclosure;
import mien.client.tasks.Methods;
import mien.client.tasks.RoundFaces;
import mien.client.tasks.Statement;
import mien.client.tasks.TaskSpec;
import mien.client.tasks.Told;
import mien.client.train.GraphRuntime;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;
import mien.client.wire.RoundRef;
import mien.client.wire.Safetensors;
import mien.client.wire.Texts;
import mien.v1.RoundsOuterClass.Assignment;
import mien.v1.RoundsOuterClass.CheckInReply;
import mien.v1.RoundsOuterClass.Duty;
import mien.v1.RoundsOuterClass.Stage;
import mien.v1.RoundsOuterClass.StageEvent;

/**
 * A device that takes part in rounds, each step of which may be repeated after a crash.
 *
 * <p>What was trained is kept sealed before the device reports it; a restart sends those very bytes, but only until the
 * device has begun to speak of keys: those live in memory, so a device that was stopped after that leaves the attempt. Where
 * the network or a key store went out of reach {@link Attempts} holds them, and the next call goes on with them while the
 * program runs.
 */
public final class Participant {
    /** After this a phone asks again, whose pictures are in enough sums over the model that it was asked to train. */
    private static final long ENOUGH_SUMS_PAUSE_MS = 60_000;

    /** Before a hash of pictures that measure: sums of scores and sums of updates have no difference that tells of either. */
    private static final byte[] SCORES = Bytes.utf8("scores");

    /** What a phone lacks whose thread was interrupted by something that its conditions do not know of. */
    private static final List<String> INTERRUPTED = Collections.singletonList(ErrorCode.CANCELLED.code());

    private static final int SECRET_BYTES = 32;

    private final CoordinatorClient client;
    private final Gallery gallery;
    private final Vault rounds;
    private final Attempts attempts;
    private final ModelStore models;
    private final Function<Model, GraphRuntime> runtimes;
    private final Agreement agreement;
    private final Conditions conditions;
    private final Clock clock;
    private final RandomBytes random;
    private final Listener listener;
    private final RoundLog log;

    /** Without a {@code log} no round is looked up: nobody told this device yet whose signature to ask for. */
    public Participant(
            CoordinatorClient client,
            Gallery gallery,
            Vault rounds,
            Attempts attempts,
            ModelStore models,
            Function<Model, GraphRuntime> runtimes,
            Agreement agreement,
            Conditions conditions,
            Clock clock,
            RandomBytes random,
            Listener listener,
            RoundLog log) {
        this.client = client;
        this.gallery = gallery;
        this.rounds = rounds;
        this.attempts = attempts;
        this.models = models;
        this.runtimes = runtimes;
        this.agreement = agreement;
        this.conditions = conditions;
        this.clock = clock;
        this.random = random;
        this.listener = listener;
        this.log = log;
    }

    /** Returns the round that was trained for and has not ended, as text; empty where there is none. */
    public static String pendingRound(Vault rounds) {
        Pending pending = Pending.load(rounds);
        return pending == null ? "" : pending.ref.toString();
    }

    /** Destroys an update that has not been settled, and that this device cannot send any more. */
    public static void forgetUnsettled(Vault rounds, Attempts attempts) {
        attempts.letGo();
        Pending.forget(rounds);
    }

    /** Destroys an update that was made of somebody's pictures and has not been settled. */
    public static void forgetOf(int person, Vault rounds, Attempts attempts) {
        Pending pending = Pending.load(rounds);
        if (pending != null && pending.agreed.containsKey(person)) {
            forgetUnsettled(rounds, attempts);
        }
    }

    /** Destroys an update of somebody who withdrew just before the power was cut; call it at opening. */
    public static void forgetWithdrawn(Gallery gallery, Vault rounds) {
        Pending pending = Pending.load(rounds);
        if (pending != null && !gallery.stillAgree(pending.agreed)) {
            Pending.forget(rounds);
        }
    }

    /**
     * Takes part in one round, or returns why not now. Throws CONFIG while nobody's pictures may train, UNREACHABLE when
     * the coordinator stays away, KEY_STORE or KEY_LOCKED while a key is out of reach: then what was trained is kept, and
     * the next call goes on with it.
     */
    public Outcome step() {
        // 1. May the phone work now?
        List<String> unmet = conditions.unmet();
        if (!unmet.isEmpty()) {
            return Outcome.notNow(String.join(", ", unmet));
        }
        // 2. A round that this device trained for before it was stopped comes first.
        Pending pending = Pending.load(rounds);
        if (pending != null) {
            listener.on(Event.RESUMED);
            return finish(pending);
        }
        attempts.letGo(); // of what is not pending any more
        // 3. Is there work?
        List<Gallery.Person> people = whoTrains();
        UsedUp usedUp = usedUp(people);
        List<String> methods = Methods.forPeople(people.size(), agreement);
        CheckInReply reply = client.checkIn(agreement.minCohort, methods, usedUp.models, usedUp.day);
        if (!reply.hasAssignment()) {
            return Outcome.noWork(reply.getWait().getRetryAfterS(), Texts.cut(reply.getWait().getReason()));
        }
        return takePart(reply.getAssignment(), people);
    }

    /** Sums of a device that was in this home before, until its key was lost, are left out: they would tell who it was. */
    private UsedUp usedUp(List<Gallery.Person> people) {
        try {
            List<OwnSum> sums = new ArrayList<>();
            for (OwnSum sum : attempts.sums(client.identity.population)) {
                if (sum.unixS >= client.identity.admittedUnixS()) {
                    sums.add(sum);
                }
            }
            return UsedUp.of(sums, () -> pictures(people), agreement, clock.unixMs() / 1000);
        } catch (MienException error) {
            if (error.code().isGone()) {
                return UsedUp.unsaid(); // what is damaged keeps this device out of the round that asks for it
            }
            throw error;
        }
    }

    private List<Gallery.Person> whoTrains() {
        List<Gallery.Person> agreed = new ArrayList<>();
        for (Gallery.Person person : gallery.people()) {
            if (person.trains) {
                agreed.add(person);
            }
        }
        if (agreed.isEmpty()) {
            gallery.requireNotLost();
            throw new MienException(
                    ErrorCode.CONFIG, "nobody enrolled has agreed to training; nothing is trained until somebody does");
        }
        return agreed;
    }

    private Outcome takePart(Assignment assignment, List<Gallery.Person> people) {
        mien.v1.RoundsOuterClass.RoundRef given = assignment.getRound();
        RoundRef ref = new RoundRef(given.getTaskId(), given.getRound(), given.getAttempt());
        Pending pending;
        try {
            Texts.name(ref.taskId, "the task's id");
            // 4. Is the task what the owner agreed to, and what this program knows? Only then is a model fetched.
            byte[] taskJson = assignment.getTaskJson().toByteArray();
            TaskSpec task = new TaskSpec(taskJson);
            agreement.check(task);
            Methods.check(task);
            Methods.checkPeople(task, people.size());
            checkAssigned(assignment, Methods.told(task));
            Map<String, Model> named = models(task, Texts.name(assignment.getModelId(), "the model's id"));
            Model model = named.get(assignment.getModelId());
            checkFaceInput(model);
            ParameterPart part = part(task, model);
            Methods.checkFits(task, part, Runtime.getRuntime().maxMemory());
            ContributionLayout layout = Methods.layout(task, model, part);
            if (!layout.sha256.equals(assignment.getContributionSha256())) {
                throw new MienException(
                        ErrorCode.LAYOUT_MISMATCH, "the task expects another contribution than this program sends; upgrade");
            }
            Budget budget = new Budget(task, agreement);
            List<OwnSum> earlier = attempts.sums(client.identity.population);
            byte[] pictures = task.measures() ? Bytes.sha256(SCORES, pictures(people)) : pictures(people);
            OwnSum planned =
                    OwnSum.planned(
                            MaskedPart.attemptId(ref), model.modelId, task.dp, pictures, clock.unixMs() / 1000);
            budget.checkPromise(planned, earlier);
            // 5. Say what leaves the phone, before anything does.
            listener.disclose(new Disclosure(task, layout, numImages(people), people.size()));
            // 6. Train on a statement that the log holds for all to see. 7. Keep what was made, before anyone is told.
            Outcome wait = waitsForAnotherModel(ref, budget, planned, earlier);
            if (wait != null) {
                return wait;
            }
            Told told = told(ref, assignment, Methods.told(task), Told.mostBytes(layout));
            byte[] words = told.words(Methods.told(task));
            byte[] statement = Statement.sha256(task.method, model.spec, model.publicShard, words);
            wait = lookUp(ref, MaskedPart.expected(ref, task, model.modelId, statement, layout));
            if (wait != null) {
                return wait;
            }
            pending = train(ref, taskJson, task, model, named, part, layout, people, told, statement, pictures);
            keep(pending);
        } catch (MienException error) {
            if (error.code().isTransient()) {
                throw error;
            }
            if (error.code().isOutOfReach()) {
                tellLeft(ref, error.code()); // nothing could be kept: nobody is to wait for it
                throw error;
            }
            return refuse(ref, error);
        } catch (RuntimeException | OutOfMemoryError | StackOverflowError error) {
            tellLeftFor(ref, error);
            throw error;
        }
        List<String> unmet = conditions.unmet();
        if (!unmet.isEmpty()) {
            return Outcome.notNow(String.join(", ", unmet));
        }
        listener.on(Event.KEPT);
        // 8. Report, say what each stage asks for, wait for the end, forget.
        return finish(pending);
    }

    /**
     * Leaves a round whose sum would be one too many for these pictures, before anything is trained for it; null where it
     * is not. Nothing is wrong with the task or the phone, so this is no failure; asked again when the sum begins.
     */
    private Outcome waitsForAnotherModel(RoundRef ref, Budget budget, OwnSum planned, List<OwnSum> earlier) {
        try {
            budget.checkLimits(planned, earlier);
            return null;
        } catch (MienException error) {
            tellLeft(ref, error.code());
            return Outcome.wait(ENOUGH_SUMS_PAUSE_MS, error);
        }
    }

    /** Returns null once the log of rounds holds what this device was told of the round, a pause while it may yet. */
    private Outcome lookUp(RoundRef ref, Expected expected) {
        return log == null
                ? null
                : log.check(
                        firstSize -> client.proveRound(ref, firstSize),
                        ref,
                        expected.logEntry(MaskedPart.attemptId(ref)),
                        () -> listener.on(Event.UNCOSIGNED));
    }

    /** Keeps what was made, unless somebody withdrew while it was: no withdrawal comes between the look and the write. */
    void keep(Pending pending) {
        synchronized (gallery) {
            requireAgreed(pending.agreed);
            pending.keep(rounds);
        }
    }

    private void requireAgreed(Map<Integer, Long> agreed) {
        if (!gallery.stillAgree(agreed)) {
            throw new MienException(ErrorCode.CONFIG, "somebody whose pictures trained has withdrawn their consent");
        }
    }

    private static void checkAssigned(Assignment assignment, List<String> names) {
        boolean isTold =
                assignment.hasReplyStream()
                        || !Safetensors.parse(assignment.getReply().toByteArray(), "what the method tells").names().isEmpty();
        if (assignment.getDuty() != Duty.TRAIN || isTold && names.isEmpty()) {
            throw new MienException(
                    ErrorCode.CONFIG, "the round asks or tells what this program does not know; it stays out of it");
        }
    }

    /** Returns what the method tells all devices of the round, the long part of it fetched. */
    private Told told(RoundRef ref, Assignment assignment, List<String> names, long most) {
        List<byte[]> blobs = new ArrayList<>();
        blobs.add(assignment.getReply().toByteArray());
        if (assignment.hasReplyStream()) {
            listener.on(Event.FETCHING);
            Blob stream = new Blob(assignment.getReplyStream().getSha256(), assignment.getReplyStream().getSizeBytes());
            blobs.add(client.reply(ref, stream, most));
        }
        return Told.parse(blobs, names, most);
    }

    /** Returns the models of a round by their ids, the assigned one and those that the task names, fetching what is not here. */
    private Map<String, Model> models(TaskSpec task, String assigned) {
        Map<String, Model> found = new LinkedHashMap<>();
        found.put(assigned, null);
        for (String other : Methods.otherModels(task)) {
            found.put(other, null);
        }
        boolean isFetched = false;
        for (Map.Entry<String, Model> each : found.entrySet()) {
            if (!models.has(each.getKey())) {
                each.setValue(fetch(each.getKey()));
                isFetched = true;
            }
        }
        if (isFetched) {
            List<String> needed = new ArrayList<>(found.keySet());
            String inUse = gallery.modelId(); // every round begins with another model; the gallery's is needed besides
            needed.add(inUse == null ? assigned : inUse);
            models.keepOnly(needed.toArray(new String[0]));
        }
        for (Map.Entry<String, Model> each : found.entrySet()) {
            if (each.getValue() == null) {
                each.setValue(models.load(each.getKey()));
            }
            if (!each.getValue().spec.layout.sha256.equals(found.get(assigned).spec.layout.sha256)) {
                throw new MienException(
                        ErrorCode.LAYOUT_MISMATCH, "the task names models of different architectures; tell the operator");
            }
        }
        return found;
    }

    private Model fetch(String modelId) {
        listener.on(Event.FETCHING);
        Manifest manifest = client.manifest(modelId);
        if (!manifest.modelId.equals(modelId)) {
            throw new MienException(
                    ErrorCode.MODEL_MISMATCH, "the coordinator sent another model than it assigned; tell the operator");
        }
        return models.fetch(manifest, client);
    }

    /** Throws MODEL_MISMATCH where a round's model takes faces otherwise than its family and the model in use do. */
    private void checkFaceInput(Model model) {
        String inUse = gallery.modelId();
        boolean isKnown =
                model.spec.input.isOwnOf(model.spec.backbone)
                        || inUse != null
                                && models.has(inUse)
                                && model.spec.input.isLike(models.describe(inUse).input);
        if (!isKnown) {
            throw new MienException(
                    ErrorCode.MODEL_MISMATCH,
                    "the round's model takes faces otherwise than the model in use; the phone stays out, tell the operator");
        }
    }

    private static ParameterPart part(TaskSpec task, Model model) {
        return model.spec.layout.part(task.trainable.isEmpty() ? model.spec.trainable : task.trainable);
    }

    private Pending train(
            RoundRef ref,
            byte[] taskJson,
            TaskSpec task,
            Model model,
            Map<String, Model> others,
            ParameterPart part,
            ContributionLayout layout,
            List<Gallery.Person> people,
            Told told,
            byte[] statement,
            byte[] pictures) {
        listener.on(task.trains() ? Event.TRAINING : task.measures() ? Event.MEASURING : Event.SUMMING);
        requireAgreed(marks(people, ids(people)));
        List<String> perIdentity = Methods.perIdentity(task.method);
        TrainingState kept = gallery.state(ids(people), ref.taskId);
        List<Integer> order = kept.order(ids(people));
        RoundFaces faces = faces(people, order, model, kept.forRound(order, perIdentity));
        long seed = task.localSeed(client.identity.deviceId, ref);
        Methods.Job job =
                new Methods.Job(
                        runtimes.apply(model), model, part, layout, task, client.identity.deviceId, seed,
                        random.take(SECRET_BYTES), told, others,
                        () -> !conditions.unmet().isEmpty());
        Methods.Output output = Methods.run(job, faces, models.loadShard(model));
        listener.on(task.trains() ? Event.TRAINED : task.measures() ? Event.MEASURED : Event.SUMMED);
        return new Pending(
                ref, taskJson, model.modelId, marks(people, order), output.contribution, output.state, statement, pictures);
    }

    /** Returns under which agreement of each their pictures were taken, in that order. */
    private static Map<Integer, Long> marks(List<Gallery.Person> people, List<Integer> order) {
        Map<Integer, Long> marks = new LinkedHashMap<>();
        for (int id : order) {
            for (Gallery.Person person : people) {
                if (person.id == id) {
                    marks.put(id, person.mark);
                }
            }
        }
        return marks;
    }

    private static List<Integer> ids(List<Gallery.Person> people) {
        List<Integer> ids = new ArrayList<>();
        for (Gallery.Person person : people) {
            ids.add(person.id);
        }
        return ids;
    }

    private static int numImages(List<Gallery.Person> people) {
        int images = 0;
        for (Gallery.Person person : people) {
            images += person.numImages();
        }
        return images;
    }

    /** Returns a hash of everybody's pictures, in the gallery's order: which of two sums hold the same is known by it. */
    private static byte[] pictures(List<Gallery.Person> people) {
        MessageDigest digest = Bytes.sha256();
        for (Gallery.Person person : people) {
            for (byte[] crop : person.crops()) {
                digest.update(Bytes.bigEndian(crop.length, 4));
                digest.update(crop);
            }
        }
        return digest.digest();
    }

    /** Returns people's crops as the model takes them, in the order of their numbers. */
    private static RoundFaces faces(
            List<Gallery.Person> people, List<Integer> order, Model model, Map<String, Tensor> state) {
        byte[][] crops = new byte[numImages(people)][];
        int[] labels = new int[crops.length];
        int at = 0;
        for (int number = 0; number < order.size(); number++) {
            for (Gallery.Person person : people) {
                for (byte[] crop : person.id == order.get(number) ? person.crops() : new byte[0][]) {
                    labels[at] = number;
                    crops[at++] = model.spec.input.fit(crop);
                }
            }
        }
        return new RoundFaces(crops, labels, state);
    }

    /** Brings a round that this device trained for to its end, from wherever it is. */
    private Outcome finish(Pending pending) {
        try {
            boolean counts = client.uploadAccepted(pending.ref);
            MaskedPart held = heldFor(pending, counts);
            if (held != null) {
                return follow(pending, held, counts);
            }
            MienException gone =
                    new MienException(
                            ErrorCode.LATE, "this phone was stopped in the middle of the private sum, its keys are gone");
            if (counts) {
                // Its vector is in; that it cannot help to uncover the sum should keep nobody waiting.
                tellLeft(pending.ref, gone.code());
            } else if (attempts.hasBegun(MaskedPart.attemptId(pending.ref))) {
                return refuse(pending.ref, gone);
            } else {
                MienException withdrawn = withdrawn(pending);
                if (withdrawn != null) {
                    return refuse(pending.ref, withdrawn);
                }
                List<String> unmet = conditions.unmet();
                if (!unmet.isEmpty()) {
                    return Outcome.notNow(String.join(", ", unmet));
                }
                client.reportTrained(pending.ref);
                listener.on(Event.REPORTED);
            }
            MaskedPart part = null; // a contribution that counts leaves nothing to say
            try {
                part = counts ? null : part(pending);
            } catch (MienException error) {
                if (isKept(error)) {
                    throw error;
                }
                return refuse(pending.ref, error);
            }
            return follow(pending, part, counts);
        } catch (MienException error) {
            if (error.code().isRoundOver()) {
                return uncounted(pending.ref, error.code().code(), error.getMessage());
            }
            if (isKept(error)) {
                throw error;
            }
            return refuse(pending.ref, error);
        } catch (RuntimeException | OutOfMemoryError | StackOverflowError error) {
            if (attempts.hasBegun(MaskedPart.attemptId(pending.ref)) && !attempts.holds(pending.ref)) {
                tellLeftFor(pending.ref, error); // its keys are gone; before them, and while they wait, the next call goes on
            }
            throw error;
        }
    }

    /** Returns whether the next call may go on where an error stopped: network, disk or a key is out of reach for now. */
    private static boolean isKept(MienException error) {
        return error.code().isTransient() || error.code().isOutOfReach() || error.code().isOfTheDisk();
    }

    /**
     * Returns why the owner does not agree any more to send what was trained, null if they do. Throws what keeps this phone
     * from knowing: a disk or key store that fails for a moment has refused nothing.
     */
    MienException withdrawn(Pending pending) {
        try {
            requireStillAgreed(pending);
            return null;
        } catch (MienException error) {
            if (isKept(error)) {
                throw error;
            }
            return error;
        }
    }

    private void requireStillAgreed(Pending pending) {
        agreement.check(new TaskSpec(pending.taskJson));
        requireAgreed(pending.agreed);
    }

    /**
     * Hands over the keys that wait for a round, null where none do. Throws why the owner does not agree any more, or why
     * that cannot be said, unless the contribution counts already; the keys then wait on.
     */
    MaskedPart heldFor(Pending pending, boolean counts) {
        if (!counts && attempts.holds(pending.ref)) {
            requireStillAgreed(pending);
        }
        return attempts.takeHeld(pending.ref);
    }

    /** Returns what speaks for this device in a round that it trained for, and has said nothing yet. */
    private MaskedPart part(Pending pending) {
        TaskSpec task = new TaskSpec(pending.taskJson);
        Model model = models.load(pending.modelId);
        ContributionLayout layout = Methods.layout(task, model, part(task, model));
        AttemptLog sums =
                attempts.under(new Budget(task, agreement), client.identity.population, pending.pictures, clock);
        return new MaskedPart(
                client.identity, agreement, sums, revoked(), clock, random, task, pending.ref, model.modelId,
                pending.statement, layout, pending.contribution);
    }

    /** Follows a round to its end; without a {@code part}, whose keys are gone, it only hears how that is. */
    private Outcome follow(Pending pending, MaskedPart part, boolean countedBefore) {
        boolean[] counts = {countedBefore};
        Outcome[] ended = new Outcome[1];
        boolean isHeld = false;
        try {
            client.follow(
                    pending.ref,
                    event -> {
                        ended[0] = on(pending, part, event, counts);
                        return ended[0] != null;
                    });
        } catch (StageEnds.Overdue error) {
            throw error.orLater(counts[0]);
        } catch (MienException error) {
            if (error.code() == ErrorCode.CANCELLED && part != null) {
                List<String> unmet = conditions.unmet();
                return stopped(pending, part, counts[0], unmet.isEmpty() ? INTERRUPTED : unmet);
            }
            if (isKept(error) && part != null && part.isUnderWay()) {
                attempts.hold(part);
                isHeld = true;
            }
            throw error;
        } finally {
            if (part != null && !isHeld) {
                part.forget();
            }
        }
        if (ended[0] != null) {
            return ended[0];
        }
        return uncounted(pending.ref, ErrorCode.LATE.code(), "the round closed without this phone's contribution");
    }

    /**
     * Returns whom the registrar has revoked, by its list, which the coordinator hands on. Throws CERTIFICATE for a list
     * that is not the registrar's, COHORT for an old one.
     */
    private Predicate<BigInteger> revoked() {
        if (log == null) {
            return serial -> false;
        }
        RevocationList list = RevocationList.parse(client.revocations(), client.identity.registrarCa);
        list.checkAge(clock.unixMs());
        return list::names;
    }

    /** Says what a stage asks for; returns how the round ended for this device, null while it goes on. */
    private Outcome on(Pending pending, MaskedPart part, StageEvent event, boolean[] counts) {
        Stage stage = event.getStage();
        if (stage == Stage.ABORTED) {
            return uncounted(pending.ref, "aborted", Texts.cut(event.getReason()));
        }
        if (stage == Stage.CLOSED) {
            return counts[0] ? settle(pending, event, part == null ? "" : part.peers()) : null;
        }
        if (part == null) {
            return null; // the keys that could say more are gone
        }
        MienException withdrawn = counts[0] ? null : withdrawn(pending);
        if (withdrawn != null) {
            return refuse(pending.ref, withdrawn);
        }
        List<String> unmet = conditions.unmet();
        return unmet.isEmpty() ? answer(pending, part, event, counts) : stopped(pending, part, counts[0], unmet);
    }

    /** Sends what a stage asks for; returns as {@link #on}. */
    private Outcome answer(Pending pending, MaskedPart part, StageEvent event, boolean[] counts) {
        Stage stage = event.getStage();
        MaskedPart.Answer answer;
        try {
            answer = part.answer(stage, event.getMessage().toByteArray());
        } catch (MienException error) {
            if (error.code().isOutOfReach()) {
                throw error;
            }
            return refuse(pending.ref, error);
        }
        try {
            counts[0] = answer == null ? counts[0] : send(pending, stage, answer, counts[0]);
            if (answer != null && stage == Stage.UNMASK) {
                part.helped();
            }
            return null;
        } catch (MienException error) {
            List<String> unmet = conditions.unmet();
            if (unmet.isEmpty()) {
                throw error;
            }
            return stopped(pending, part, counts[0], unmet);
        }
    }

    /** Leaves a round in which the phone may not go on; what was not begun, and what counts, goes on the next time. */
    private Outcome stopped(Pending pending, MaskedPart part, boolean counts, List<String> unmet) {
        String missing = String.join(", ", unmet);
        if (counts) {
            tellKeysEnd(pending.ref, part);
        }
        if (counts || !attempts.hasBegun(MaskedPart.attemptId(pending.ref))) {
            return Outcome.notNow(missing);
        }
        return refuse(
                pending.ref,
                new MienException(ErrorCode.LATE, "the phone may not go on now (" + missing + "); nothing is lost"));
    }

    /** The keys end with this call: nobody is to wait for this phone's help in uncovering the sum. */
    private void tellKeysEnd(RoundRef ref, MaskedPart part) {
        if (!part.hasHelped()) {
            tellLeft(ref, ErrorCode.LATE);
        }
    }

    private void requireMayGoOn(Pending pending) {
        requireAgreed(pending.agreed);
        Leaving.unlessMet(conditions);
    }

    /** Sends a stage's answer; returns whether this device's contribution counts now. */
    private boolean send(Pending pending, Stage stage, MaskedPart.Answer answer, boolean counts) {
        RoundRef ref = pending.ref;
        listener.on(Event.valueOf(stage.name()));
        if (answer.payload != null) {
            if (!counts) {
                client.upload(ref, answer.payload, answer.message, () -> requireMayGoOn(pending));
                listener.on(Event.UPLOADED);
            }
            return true;
        }
        try {
            client.sendStep(ref, stage, answer.message);
        } catch (MienException error) {
            // Once the vector is in, being late with a message does not take it out again.
            if (!counts || error.code() != ErrorCode.LATE) {
                throw error;
            }
        }
        return counts;
    }

    private Outcome settle(Pending pending, StageEvent event, String peers) {
        attempts.recordClosed(MaskedPart.attemptId(pending.ref));
        List<String> perIdentity = Methods.perIdentity(new TaskSpec(pending.taskJson).method);
        TrainingState state = TrainingState.of(pending.state, pending.people(), perIdentity);
        synchronized (gallery) {
            if (gallery.stillAgree(pending.agreed)) {
                gallery.putState(pending.ref.taskId, state);
            }
        }
        forgetUnsettled(rounds, attempts);
        return Outcome.counted(pending.ref, Texts.cut(event.getModelId()), event.getNumReports(), peers);
    }

    private Outcome uncounted(RoundRef ref, String code, String reason) {
        forgetUnsettled(rounds, attempts);
        return Outcome.of(Outcome.Kind.NOT_COUNTED, ref, code, reason);
    }

    /** Leaves a round for an error of this device's own. */
    private Outcome refuse(RoundRef ref, MienException error) {
        tellLeft(ref, error.code());
        forgetUnsettled(rounds, attempts);
        Outcome.Kind kind = error.code().isRoundOver() ? Outcome.Kind.NOT_COUNTED : Outcome.Kind.FAILED;
        return Outcome.of(kind, ref, error.code().code(), error.getMessage());
    }

    /** Tells the coordinator not to wait for a device whose listener, or whose program, failed; that is what is said. */
    private void tellLeftFor(RoundRef ref, Throwable failed) {
        try {
            tellLeft(ref, ErrorCode.OTHER);
        } catch (RuntimeException | OutOfMemoryError | StackOverflowError second) {
            failed.addSuppressed(second);
        }
    }

    /**
     * Tells the coordinator not to wait for this device; if it cannot be told, the round's deadline tells it. It is told on
     * a thread that is being stopped, too, which stays interrupted; another interrupt ends the telling.
     */
    private void tellLeft(RoundRef ref, ErrorCode code) {
        boolean interrupted = Thread.interrupted();
        try {
            client.leave(ref, code);
        } catch (MienException unheard) {
            if (!unheard.code().isTransient() && !unheard.code().isRoundOver()) {
                throw unheard;
            }
            listener.on(Event.LEAVE_UNHEARD);
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
