package mien.client.rounds;

import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.people.Gallery;
import mien.client.store.Vault;
import mien.client.wire.RoundRef;

/** Rounds that a phone has trained for and not settled, without the training. */
public final class PendingRounds {
    private PendingRounds() {}

    /** Keeps one, of a task in JSON, over the pictures of everybody who agreed. */
    public static void keep(Vault rounds, Gallery gallery, byte[] taskJson) {
        Map<Integer, Long> agreed = new LinkedHashMap<>();
        for (Gallery.Person person : gallery.people()) {
            agreed.put(person.id, person.mark);
        }
        String modelId = String.valueOf(gallery.modelId());
        new Pending(
                        new RoundRef("task", 3, 1), taskJson, modelId, agreed, new byte[] {1, 2, 3},
                        new LinkedHashMap<>(), new byte[32], new byte[32])
                .keep(rounds);
    }
}
