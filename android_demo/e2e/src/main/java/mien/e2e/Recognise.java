package mien.e2e;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import mien.client.model.Graphs;
import mien.client.model.Model;
import mien.client.model.ModelStore;
import mien.client.people.Gallery;
import mien.client.people.Numbers;
import mien.client.people.Recogniser;
import mien.client.store.FileKeyProvider;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.train.GraphRuntime;
import mien.client.train.OrtEngine;
import mien.client.wire.Bytes;

/**
 * Enrols somebody and recognises them, for a test that looks at the memory and at the numbers.
 *
 * <pre>
 * Recognise FOLDER GRAPHS: reads what Train does but for the task; enrols the crops of label 0, identifies each crop, writes
 * the embeddings of all, one after the other, to embeddings and prints a line of yes and no
 * </pre>
 */
public final class Recognise {
    private Recognise() {}

    public static void main(String[] arguments) throws IOException {
        Path folder = Paths.get(arguments[0]);
        Folder home = new Folder(folder.resolve("home"));
        Model model = Train.model(folder, new ModelStore(home.folder("models")));
        byte[][] crops = Phone.crops(folder.resolve("crops"));
        byte[] labels = Files.readAllBytes(folder.resolve("labels"));
        byte[][] own = Arrays.copyOf(crops, crops.length);
        int numOwn = 0;
        for (int i = 0; i < crops.length; i++) {
            if (labels[i] == 0) {
                own[numOwn++] = crops[i];
            }
        }
        own = Arrays.copyOf(own, numOwn);
        Vault vault = new Vault(home.folder("gallery"), new FileKeyProvider(home.folder("keys")), "gallery");
        Gallery gallery = new Gallery(vault, new Numbers(home));
        StringBuilder said = new StringBuilder();
        float[][] rows = new float[crops.length][];
        try (OrtEngine engine = new OrtEngine(new Graphs(new Folder(Paths.get(arguments[1])), model.spec.layout), 1)) {
            Recogniser recogniser = new Recogniser(model, new GraphRuntime(model.spec, engine), gallery);
            gallery.enrol("Ada", own, recogniser.template(own), model.modelId, 0, false);
            for (int i = 0; i < crops.length; i++) {
                rows[i] = recogniser.embed(new byte[][] {crops[i]})[0];
                said.append(recogniser.identify(crops[i]).person == null ? "no " : "yes ");
            }
        }
        byte[] all = new byte[0];
        for (float[] row : rows) {
            all = Bytes.concat(all, Bytes.littleEndian(row));
        }
        Files.write(folder.resolve("embeddings"), all);
        System.out.println(said.toString().trim());
    }
}
