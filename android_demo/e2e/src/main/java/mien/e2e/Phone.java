package mien.e2e;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import mien.client.Clock;
import mien.client.Device;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.rounds.Event;
import mien.client.rounds.Listener;
import mien.client.rounds.Outcome;
import mien.client.rounds.Peek;
import mien.client.secagg.Profile;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.tasks.Agreement;
import mien.client.tasks.Disclosure;
import mien.client.wire.Json;

/**
 * A phone in a process: joins, enrols crops from a file, takes part in rounds; tells each thing as a line of JSON.
 *
 * <pre>
 * Phone --home DIR --invite URL --crops FILE [--guest FILE] --graphs DIR [--min-cohort N] [--reveals NAME] [--rounds N]
 *       [--sent FILE] [--halt-at WORD] [--halt-after N]
 * </pre>
 *
 * {@code --sent} writes each round's contribution before any mask, for a test to add up: FILE, FILE-2, FILE-3 and so on. {@code --halt-at} ends the
 * process at that word of progress, when it comes for the N-th time, as a power cut would.
 */
public final class Phone implements Listener {
    private static final int CROP_BYTES = 112 * 112 * 3;

    private final Map<String, String> options;
    private final Vault rounds;
    private int numSent;
    private int numHeard;

    private Phone(Map<String, String> options, Vault rounds) {
        this.options = options;
        this.rounds = rounds;
    }

    public static void main(String[] arguments) throws IOException {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i].substring(2), arguments[i + 1]);
        }
        try {
            run(options);
        } catch (MienException error) {
            tell("error", "code", error.code().code(), "text", error.getMessage());
            System.exit(1);
        }
        System.exit(0); // gRPC's threads take their time
    }

    private static void run(Map<String, String> options) throws IOException {
        Folder home = new Folder(Paths.get(options.get("home")));
        FileKeyProvider keys = new FileKeyProvider(home.folder("keys"));
        Device device = Device.at(Paths.get(options.get("home"))).keysInFiles().open();
        tell("joined", "device", joined(device, options.get("invite")));
        Phone phone = new Phone(options, new Vault(home.folder("rounds"), keys, "rounds"));
        phone.enrol(device, home);
        phone.takePart(device);
    }

    /** Joins; again where a machine that emulates another is too slow for gRPC's own limit of a second on a thread's start. */
    private static String joined(Device device, String invite) {
        for (int left = 9;; left--) {
            try {
                return device.join(invite).deviceId;
            } catch (MienException error) {
                if (error.code() != ErrorCode.UNREACHABLE || left == 0) {
                    throw error;
                }
            }
        }
    }

    private void enrol(Device device, Folder home) throws IOException {
        if (options.containsKey("graphs")) {
            copyGraphs(Paths.get(options.get("graphs")), home);
        }
        device.update();
        if (device.people().isEmpty()) {
            device.enrol("Owner", crops(Paths.get(options.get("crops"))), true);
            if (options.containsKey("guest")) {
                device.enrol("Guest", crops(Paths.get(options.get("guest"))), true);
            }
        }
        tell("enrolled", "model_id", device.status().modelId);
    }

    /** Returns the crops that a file holds end to end. */
    static byte[][] crops(Path file) throws IOException {
        byte[] all = Files.readAllBytes(file);
        byte[][] crops = new byte[all.length / CROP_BYTES][];
        for (int i = 0; i < crops.length; i++) {
            crops[i] = Arrays.copyOfRange(all, i * CROP_BYTES, (i + 1) * CROP_BYTES);
        }
        return crops;
    }

    /** Copies graphs that no release brought; the folder is named after their layout. */
    private static void copyGraphs(Path from, Folder home) throws IOException {
        Folder to = home.folder("graphs").folder(from.getFileName().toString());
        try (Stream<Path> files = Files.list(from)) {
            for (Path file : (Iterable<Path>) files::iterator) {
                if (!file.toString().endsWith(".pte")) {
                    to.write(file.getFileName().toString(), Files.readAllBytes(file));
                }
            }
        }
    }

    private void takePart(Device device) {
        int minCohort = Integer.parseInt(options.getOrDefault("min-cohort", "16"));
        Set<String> reveals =
                options.containsKey("reveals")
                        ? Collections.singleton(options.get("reveals"))
                        : Collections.<String>emptySet();
        Agreement agreement = new Agreement(minCohort, EnumSet.of(Profile.MALICIOUS_SERVER), reveals);
        for (int left = Integer.parseInt(options.getOrDefault("rounds", "1")); left > 0; ) {
            Outcome outcome = device.participate(agreement, Collections::emptyList, this);
            if (outcome.kind == Outcome.Kind.WAIT || outcome.kind == Outcome.Kind.NOT_NOW) {
                Clock.system().sleep(Math.min(Math.max(outcome.retryAfterMs, 100), 500));
                continue;
            }
            tell(outcome);
            left--;
        }
    }

    private static void tell(Outcome outcome) {
        tell(
                "outcome",
                "kind", outcome.kind.name(),
                "round", String.valueOf(outcome.round),
                "code", outcome.code,
                "reason", outcome.reason,
                "model_id", outcome.modelId,
                "num_reports", String.valueOf(outcome.numReports));
    }

    @Override
    public void disclose(Disclosure told) {
        tell(
                "disclosure",
                "numbers", String.valueOf(told.numNumbers),
                "bytes", String.valueOf(told.numBytes),
                "images", String.valueOf(told.numImages),
                "fewest", String.valueOf(told.fewest));
    }

    @Override
    public void on(Event event) {
        tell("progress", "word", event.word());
        if (event == Event.REPORTED && options.containsKey("sent")) {
            numSent++;
            String file = options.get("sent") + (numSent == 1 ? "" : "-" + numSent);
            try {
                Files.write(Paths.get(file), Peek.contribution(rounds));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
        if (event.word().equals(options.get("halt-at"))
                && ++numHeard == Integer.parseInt(options.getOrDefault("halt-after", "1"))) {
            Runtime.getRuntime().halt(9);
        }
    }

    private static void tell(String event, String... facts) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        for (int i = 0; i < facts.length; i += 2) {
            line.put(facts[i], facts[i + 1]);
        }
        System.out.println(Json.write(line));
        System.out.flush();
    }
}
