package mien.e2e;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.KeyPair;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import javax.crypto.SecretKey;
import javax.crypto.spec.SecretKeySpec;
import mien.client.Clock;
import mien.client.Device;
import mien.client.Logs;
import mien.client.MienException;
import mien.client.Participation;
import mien.client.Status;
import mien.client.join.AttestedKey;
import mien.client.join.FileIdentityKeys;
import mien.client.join.IdentityKeys;
import mien.client.people.Decision;
import mien.client.people.Gallery;
import mien.client.people.Personalised;
import mien.client.rounds.Event;
import mien.client.rounds.Journal;
import mien.client.rounds.Listener;
import mien.client.rounds.Outcome;
import mien.client.secagg.Profile;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.KeyProvider;
import mien.client.store.Vault;
import mien.client.tasks.Agreement;
import mien.client.tasks.Disclosure;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Invite;
import mien.client.wire.Json;

/**
 * A phone that does what it is told, as an app would: a line of JSON in, a line of JSON out.
 *
 * <pre>
 * Life HOME
 * {"do": "join", "invite": URL}   {"do": "enrol", "name": "Ada", "crops": FILE, "agrees": true}   {"do": "status"}
 * </pre>
 *
 * An error is answered as {@code {"error": CODE, "text": ...}}. {@code clock} sets this phone's clock, {@code lock} puts its
 * keys out of reach, or back. {@code participate}
 * takes commands for the midst of a round: {@code {"at": "training", "then": [{"do": "remove", "person": 1}]}}.
 * {@code attest} shows the key that an invite is joined with, and takes the chain that the registrar is shown.
 */
public final class Life {
    /** A clock that can be set; in a hurry its pauses take no time but count in full. */
    private static final class Settable implements Clock {
        private final Clock real = Clock.system();
        private volatile long aheadMs;
        private volatile boolean isHurried;
        private volatile long skippedMs;

        @Override
        public long unixMs() {
            return real.unixMs() + aheadMs;
        }

        @Override
        public long monotonicMs() {
            return real.monotonicMs() + skippedMs;
        }

        @Override
        public void sleep(long ms) {
            if (isHurried) {
                skippedMs += ms;
            } else {
                real.sleep(ms);
            }
        }
    }

    /** A key in a file, of which a test says what hardware attests of it. */
    private static final class Attested implements IdentityKeys {
        private final FileIdentityKeys file;
        private List<byte[]> chain = Collections.emptyList();
        private int numRefused;

        Attested(FileIdentityKeys file) {
            this.file = file;
        }

        @Override
        public KeyPair find(String invite) {
            return file.find(invite);
        }

        @Override
        public AttestedKey toJoin(String invite, byte[] challenge) {
            return new AttestedKey(file.toJoin(invite, challenge).pair, chain);
        }

        @Override
        public void refused(String invite) {
            numRefused++;
        }

        @Override
        public void admitted(String invite) {
            file.admitted(invite);
        }

        @Override
        public void destroy() {
            file.destroy();
        }
    }

    /** Keys in files that can be locked away: a cipher refuses them for their length, as those of a locked key store. */
    private static final class Locked implements KeyProvider {
        private final KeyProvider files;
        private volatile boolean isLocked;

        Locked(KeyProvider files) {
            this.files = files;
        }

        @Override
        public SecretKey find(String name) {
            return handle(files.find(name));
        }

        @Override
        public SecretKey make(String name) {
            return handle(files.make(name));
        }

        private SecretKey handle(SecretKey key) {
            return key == null || !isLocked ? key : new SecretKeySpec(new byte[5], "AES");
        }

        @Override
        public void destroy(String name) {
            files.destroy(name);
        }
    }

    private final Settable clock = new Settable();
    private final Locked keys;
    private final Attested identityKeys;
    private final Device device;
    private Participation round;

    private Life(Folder home) {
        keys = new Locked(new FileKeyProvider(home.folder("keys")));
        identityKeys = new Attested(new FileIdentityKeys(new Vault(home.folder("key"), keys, "identity")));
        device = Device.at(home.path("")).keys(keys).identityKeys(identityKeys).clock(clock).open();
    }

    public static void main(String[] arguments) throws IOException {
        Life life = null;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Object answer;
            try {
                life = life == null ? new Life(new Folder(Paths.get(arguments[0]))) : life;
                answer = life.answer(Json.object(Bytes.utf8(line), "the command"));
            } catch (MienException error) {
                answer = facts("error", error.code().code(), "text", error.getMessage());
            }
            System.out.println(Json.write(answer));
            System.out.flush();
        }
        System.exit(0); // gRPC's threads take their time
    }

    private Object answer(Fields told) throws IOException {
        switch (told.text("do")) {
            case "clock":
                clock.aheadMs = told.number("ahead_ms");
                clock.isHurried = told.has("hurried");
                return facts();
            case "attest":
                return attest(told);
            case "join":
                return facts("device", device.join(told.text("invite")).deviceId);
            case "renew":
                return facts("ends_ms", device.renew().certificate.getNotAfter().getTime());
            case "update":
                return facts("changed", device.update());
            case "participate":
                return outcome(told);
            case "tell":
                return facts("told", device.tellParticipation());
            case "leave":
                return facts("told", device.leave());
            case "lock":
                keys.isLocked = told.flag("away");
                return facts();
            case "log":
                Logs.of(device).beginAnew();
                return facts();
            case "status":
                return status(device.status());
            case "cancel":
                cancel(told.number("after_ms", 0));
                return facts();
            case "fail":
                throw new IllegalStateException("the app's own fault");
            case "exhaust":
                throw new OutOfMemoryError("as of an app without any");
            case "hold":
                hold(Paths.get(told.text("until")));
                return facts();
            case "halt":
                Runtime.getRuntime().halt(9);
                return facts();
            default:
                return withPeople(told);
        }
    }

    private void cancel(long afterMs) {
        Participation now = round;
        if (afterMs == 0) {
            now.cancel();
            return;
        }
        new Thread(
                        () -> {
                            Clock.system().sleep(afterMs);
                            now.cancel();
                        })
                .start();
    }

    /** Keeps a round from going on until there is a file. */
    private static void hold(Path until) {
        while (!Files.exists(until)) {
            Clock.system().sleep(20);
        }
    }

    /** Shows the key to join with and its challenge, and takes what a maker of phones attests of it, where that is told. */
    private Object attest(Fields told) {
        Invite invite = Invite.parse(told.text("invite"));
        byte[] challenge = invite.attestationChallenge();
        if (told.has("chain")) {
            identityKeys.chain = new ArrayList<>();
            told.texts("chain").forEach(each -> identityKeys.chain.add(Bytes.unhex(each)));
        }
        AttestedKey key = identityKeys.toJoin(invite.sha256(), challenge);
        return facts(
                "key", Bytes.hex(key.pair.getPublic().getEncoded()), "challenge", Bytes.hex(challenge), "refused",
                identityKeys.numRefused);
    }

    private static Object personalised(Personalised made) {
        List<Object> thresholds = new ArrayList<>();
        made.thresholds.values().forEach(each -> thresholds.add(String.valueOf(each.value)));
        return facts(
                "used", made.isUsed, "gain", String.valueOf(made.gain), "thresholds", thresholds);
    }

    private Object withPeople(Fields told) throws IOException {
        switch (told.text("do")) {
            case "enrol":
                boolean anyway = told.has("anyway") && told.flag("anyway");
                return facts("person", device.enrol(told.text("name"), crops(told), told.flag("agrees"), anyway));
            case "add":
                device.add(told.count("person", 1), crops(told));
                return facts();
            case "personalise":
                return personalised(device.personalise());
            case "consent":
                device.setConsent(told.count("person", 1), told.flag("agrees"));
                return facts();
            case "remove":
                device.remove(told.count("person", 1));
                return facts();
            case "wipe":
                device.wipe();
                return facts();
            case "verify":
            case "identify":
                return decisions(told);
            default:
                throw new IllegalArgumentException("no command " + told.text("do"));
        }
    }

    private static byte[][] crops(Fields told) throws IOException {
        return Phone.crops(Paths.get(told.text("crops")));
    }

    /** Returns the number of whoever each crop was taken for, 0 for nobody. */
    private Object decisions(Fields told) throws IOException {
        List<Object> people = new ArrayList<>();
        boolean verifies = told.text("do").equals("verify");
        for (byte[] crop : crops(told)) {
            Decision decision = verifies ? device.verify(told.count("person", 1), crop) : device.identify(crop);
            people.add(decision.isMatch() ? decision.person.id : 0);
        }
        return facts("people", people);
    }

    private Object outcome(Fields told) {
        int perModel = (int) told.number("max_sums_per_model", Agreement.SUMS_PER_MODEL);
        Agreement agreement =
                new Agreement(
                                told.count("min_cohort", 2), EnumSet.of(Profile.MALICIOUS_SERVER),
                                Collections.emptySet(), perModel, Agreement.SUMS_PER_DAY)
                        .withPeers((int) told.number("min_peer_age_days", 0), false);
        List<String> unmet = new CopyOnWriteArrayList<>(told.texts("unmet"));
        Meanwhile meanwhile = new Meanwhile(told, unmet);
        round = device.participation(agreement, () -> Collections.unmodifiableList(unmet), meanwhile);
        round.run();
        Outcome outcome;
        try {
            outcome = round.outcome().join();
        } catch (CompletionException error) {
            throw (RuntimeException) error.getCause();
        }
        return facts(
                "kind", outcome.kind.name(), "code", outcome.code, "reason", outcome.reason, "model_id", outcome.modelId,
                "num_reports", outcome.numReports, "words", meanwhile.words, "disclosed", meanwhile.disclosed);
    }

    /** Hears how a round goes; at one word of progress it does what else was told, as an app's other screens might. */
    private final class Meanwhile implements Listener {
        final List<Object> words = new ArrayList<>();
        final List<Object> disclosed = new ArrayList<>();
        private final String at;
        private final List<Fields> then;
        private final List<String> unmetThen;
        private final List<String> unmet;

        Meanwhile(Fields told, List<String> unmet) {
            this.unmet = unmet;
            at = told.text("at", "");
            then = told.has("then") ? told.objects("then") : Collections.emptyList();
            unmetThen = told.has("unmet_then") ? told.texts("unmet_then") : Collections.emptyList();
        }

        @Override
        public void disclose(Disclosure disclosure) {
            disclosed.add(disclosure.task);
            doAt("disclosure");
        }

        @Override
        public void on(Event event) {
            String word = event.word();
            words.add(word);
            doAt(word);
        }

        private void doAt(String word) {
            if (word.equals(at)) {
                unmet.addAll(unmetThen);
                then.forEach(this::answered);
            }
        }

        private void answered(Fields command) {
            try {
                answer(command);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private Object status(Status status) {
        List<Object> people = new ArrayList<>();
        for (Gallery.Person person : device.people()) {
            people.add(
                    facts(
                            "id", person.id, "name", person.name, "trains", person.trains, "images", person.numImages(),
                            "damaged", person.isDamaged));
        }
        List<Object> journal = new ArrayList<>();
        for (Journal.Entry entry : status.journal) {
            journal.add(facts("kind", entry.kind.name(), "code", entry.code, "reason", entry.reason, "times", entry.times));
        }
        return facts(
                "joined", status.joined, "lost_key", status.lostKey, "device", status.deviceId,
                "certificate_ends_ms", status.certificateEndsMs, "model_id", status.modelId, "people", people,
                "num_agreed", status.numAgreed, "pending", status.pendingRound, "num_private_sums", status.numPrivateSums,
                "num_sums_today", status.numSumsToday,
                "stays_out", status.staysOut, "still_to_tell", status.stillToTell, "sent_bytes", status.sentBytes,
                "received_bytes", status.receivedBytes, "journal", journal, "looks_up_rounds", status.looksUpRounds, "lies",
                status.lies, "log_entries", Logs.of(device).numEntries());
    }

    private static Map<String, Object> facts(Object... namesAndValues) {
        Map<String, Object> facts = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            facts.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return facts;
    }
}
