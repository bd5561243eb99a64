package mien.client.rounds;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import mien.client.tasks.Agreement;
import mien.client.wire.Bytes;

/** What an owner's limits leave no room for, as it is said at a check-in, so that no round keeps a place for it. */
final class UsedUp {
    /** An older model is hardly trained again. */
    private static final int MOST_MODELS = 16;

    /** Models to train, those of the newest sums first. */
    final List<String> models;

    /** Whether that is any sum without noise of the phones' own, today. */
    final boolean day;

    private UsedUp(List<String> models, boolean day) {
        this.models = models;
        this.day = day;
    }

    /**
     * Returns what has no room for one more sum with these pictures, which are asked for if need be. Those sums alone
     * count that are known to be opened: what is not may be tried again, with this device.
     */
    static UsedUp of(List<OwnSum> sums, Supplier<byte[]> pictures, Agreement agreement, long nowUnixS) {
        List<OwnSum> opened = new ArrayList<>();
        Map<String, List<OwnSum>> byModel = new HashMap<>();
        Map<String, Long> newest = new HashMap<>();
        List<String> full = new ArrayList<>();
        for (OwnSum sum : sums) {
            if (!sum.isReleased || sum.isNoised) {
                continue;
            }
            opened.add(sum);
            String model = Bytes.hex(sum.modelSha256);
            byModel.computeIfAbsent(model, each -> new ArrayList<>()).add(sum);
            newest.merge(model, sum.unixS, Math::max);
            if (byModel.get(model).size() == agreement.maxSumsPerModel) {
                full.add(model);
            }
        }
        full.sort(
                (one, other) -> {
                    int order = Long.compare(newest.get(other), newest.get(one));
                    return order == 0 ? one.compareTo(other) : order;
                });
        byte[] mine = full.isEmpty() ? null : pictures.get();
        List<String> models = new ArrayList<>();
        for (String model : full) {
            int alike = 0;
            for (OwnSum sum : byModel.get(model)) {
                alike += sum.mayHold(mine) ? 1 : 0;
            }
            if (alike >= agreement.maxSumsPerModel && models.size() < MOST_MODELS) {
                models.add(model);
            }
        }
        return new UsedUp(models, Budget.sumsToday(opened, nowUnixS) >= agreement.maxSumsPerDay);
    }

    /** Returns that nothing is said to be used up. */
    static UsedUp unsaid() {
        return new UsedUp(new ArrayList<>(), false);
    }
}
