package mien.client;

import java.util.Map;
import java.util.Random;
import mien.client.fl.Agreement;
import mien.client.fl.Attempts;
import mien.client.fl.Conditions;
import mien.client.fl.CoordinatorClient;
import mien.client.fl.Gallery;
import mien.client.fl.Listener;
import mien.client.fl.Participant;
import mien.client.fl.Recogniser;
import mien.client.join.Identity;
import mien.client.join.IdentityKeys;
import mien.client.join.Joining;
import mien.client.model.Blob;
import mien.client.model.Bundle;
import mien.client.model.Graphs;
import mien.client.model.Manifest;
import mien.client.model.Model;
import mien.client.model.ModelStore;
import mien.client.model.ReleaseGuard;
import mien.client.secagg.RandomBytes;
import mien.client.store.Folder;
import mien.client.store.KeyProvider;
import mien.client.store.Vault;
import mien.client.train.GraphRuntime;
import mien.client.train.OrtEngine;
import mien.client.wire.Bytes;
import mien.client.wire.Invite;

/**
 * One device's home: identity, gallery, models, rounds. What an app or a program holds on to.
 *
 * <pre>
 * home/identity.json      who this device is           models/   by hash
 * home/gallery/           sealed records of people     graphs/   by hash, of the release or put there
 * home/rounds/            what was trained, sealed     sums/     the log of private sums, sealed
 * </pre>
 */
public final class Device {
    private static final String MODEL_IN_USE = "model";

    public final Gallery gallery;
    public final Attempts attempts;
    private final Folder home;
    private final Vault rounds;
    private final ModelStore models;
    private final Joining joining;
    private final Clock clock;
    private final Random random;

    public Device(Folder home, KeyProvider keys, IdentityKeys identityKeys, Clock clock, Random random) {
        this.home = home;
        this.clock = clock;
        this.random = random;
        gallery = new Gallery(new Vault(home.folder("gallery"), keys, "gallery"));
        rounds = new Vault(home.folder("rounds"), keys, "rounds");
        attempts = new Attempts(new Vault(home.folder("sums"), keys, "sums"));
        models = new ModelStore(home.folder("models"));
        joining = new Joining(home, identityKeys, clock, random);
    }

    /** Joins by an invite's URL; the same one again gives the same identity. */
    public Identity join(String url) {
        return joining.join(Invite.parse(url));
    }

    public Identity identity() {
        return joining.load();
    }

    /** Opens a connection to the coordinator, on which both have said hello. */
    public CoordinatorClient connect() {
        CoordinatorClient client = new CoordinatorClient(joining.load(), clock, random);
        client.hello();
        return client;
    }

    /** Fetches the released model with its graphs, checked, and re-embeds the gallery with it; returns it. */
    public Model update(CoordinatorClient client) {
        Manifest manifest = client.manifest("");
        ReleaseGuard guard = new ReleaseGuard(client.identity.releaseKey, home);
        Bundle signed = guard.check(manifest);
        Model model = models.fetch(manifest, client);
        if (signed != null) {
            fetchGraphs(client, signed);
        }
        guard.accept(signed);
        Recogniser recogniser = recogniser(model);
        for (Gallery.Person person : gallery.people()) {
            if (!gallery.modelOf(person.id).equals(model.modelId)) {
                gallery.reembed(person.id, recogniser.templates(gallery.cropsOf(person.id)), model.modelId);
            }
        }
        home.write(MODEL_IN_USE, Bytes.utf8(model.modelId));
        return model;
    }

    private void fetchGraphs(CoordinatorClient client, Bundle signed) {
        Folder folder = graphsOf(signed.layoutSha256);
        for (Map.Entry<String, Blob> file : signed.graphs().entrySet()) {
            if (!folder.has(file.getValue().sha256)) {
                client.download(file.getValue(), folder, "graph " + file.getKey());
            }
        }
        Blob list = signed.graphs().get("graphs.json");
        if (list != null) {
            folder.write("graphs.json", folder.read(list.sha256)); // last, so that it names only what is there
        }
    }

    private Folder graphsOf(String layoutSha256) {
        return home.folder("graphs").folder(layoutSha256);
    }

    /** Returns the model in use; throws NOT_FOUND before the first update. */
    public Model model() {
        byte[] id = home.read(MODEL_IN_USE);
        return models.load(id == null ? "" : Bytes.text(id));
    }

    public Recogniser recogniser(Model model) {
        return new Recogniser(model, runtime(model), gallery);
    }

    private GraphRuntime runtime(Model model) {
        Graphs graphs = new Graphs(graphsOf(model.spec.layout.sha256), model.spec.layout);
        return new GraphRuntime(model.spec, new OrtEngine(graphs, 1));
    }

    /** Enrols a person from aligned crops, with the model in use; returns their number. */
    public int enrol(String name, byte[][] crops, boolean trains) {
        Model model = model();
        return gallery.enrol(name, crops, recogniser(model).templates(crops), model.modelId, trains);
    }

    /** Returns what takes part in rounds over an open connection. */
    public Participant participant(
            CoordinatorClient client, Agreement agreement, Conditions conditions, RandomBytes chance, Listener listener) {
        return new Participant(
                client, gallery, rounds, attempts, models, this::runtime, agreement, conditions, clock, chance, listener);
    }

    /** Destroys gallery and what was trained; the identity and the log of sums stay, for they tell what has left. */
    public void wipe() {
        gallery.wipe();
        rounds.wipe();
    }
}
