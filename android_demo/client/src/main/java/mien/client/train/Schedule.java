package mien.client.train;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.Iterator;
import java.util.NoSuchElementException;

/** The batches of a round: every crop once an epoch, the last batch with what is left. */
final class Schedule implements Iterator<Batch> {
    private final LocalSpec local;
    private final int numCrops;
    private final Generator random;
    private final Deque<Batch> ready = new ArrayDeque<>();
    private int epoch;
    private int given;

    Schedule(LocalSpec local, int numCrops, Generator random) {
        this.local = local;
        this.numCrops = numCrops;
        this.random = random;
    }

    @Override
    public boolean hasNext() {
        if (local.steps > 0) {
            return given < local.steps;
        }
        return !ready.isEmpty() || epoch < local.epochs;
    }

    @Override
    public Batch next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        if (ready.isEmpty()) {
            drawEpoch();
        }
        given++;
        return ready.remove();
    }

    private void drawEpoch() {
        int[] order = random.permutation(numCrops);
        boolean[] mirrored = new boolean[numCrops];
        for (int i = 0; local.flip && i < numCrops; i++) {
            mirrored[i] = random.random() < 0.5;
        }
        double rate = local.lrDropEpoch > 0 && epoch >= local.lrDropEpoch ? 0.1 : 1.0;
        int size = local.batchSize == 0 ? numCrops : local.batchSize;
        for (int start = 0; start < numCrops; start += size) {
            int[] indices = Arrays.copyOfRange(order, start, Math.min(start + size, numCrops));
            boolean[] of = new boolean[indices.length];
            for (int i = 0; i < of.length; i++) {
                of[i] = mirrored[indices[i]];
            }
            ready.add(new Batch(indices, of, rate));
        }
        epoch++;
    }
}
