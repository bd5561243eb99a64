package mien.client.tasks;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.model.Model;
import mien.client.model.ParameterLayout;
import mien.client.model.ParameterPart;
import mien.client.model.Parameters;
import mien.client.model.PublicShard;
import mien.client.train.GraphRuntime;
import mien.client.train.Objective;
import mien.client.train.Tensor;
import mien.client.train.Trained;

/** The device halves that this program has, by the method's name: FedAvg, FedProx, FedFace (private forms, but the one with steps), statistics. */
public final class Methods {
    private static final List<String> FOR_SEVERAL = Arrays.asList("fedavg", "fedprox", Statistics.NAME);

    /** What a round made: the contribution before any mask, and what stays here. */
    public static final class Output {
        public final byte[] contribution;
        public final Map<String, Tensor> state;

        Output(byte[] contribution, Map<String, Tensor> state) {
            this.contribution = contribution;
            this.state = state;
        }
    }

    /** One round of one task on a model, as its runtime runs it. */
    public static final class Job {
        /** A whole number of the batches that embed. */
        private static final int AT_ONCE = 32;

        final TaskSpec task;
        final long seed;
        private final GraphRuntime runtime;
        private final Model model;
        final ParameterPart part;
        final ContributionLayout layout;
        final Told told;
        private final BooleanSupplier shouldStop;

        /** Puts together what a method's device half works on, and what has it stop. */
        public Job(
                GraphRuntime runtime,
                Model model,
                ParameterPart part,
                ContributionLayout layout,
                TaskSpec task,
                long seed,
                Told told,
                BooleanSupplier shouldStop) {
            this.told = told;
            this.runtime = runtime;
            this.model = model;
            this.part = part;
            this.layout = layout;
            this.task = task;
            this.seed = seed;
            this.shouldStop = shouldStop;
        }

        int dim() {
            return model.spec.input.dim;
        }

        float[][] embed(byte[][] crops) {
            return runtime.embed(model.parameters, crops);
        }

        /** Returns embeddings of public people's crops, of which few at a time are in memory. */
        float[][] embed(PublicShard shard) {
            float[][] rows = new float[shard.numCrops()][];
            for (int start = 0; start < rows.length; start += AT_ONCE) {
                byte[][] some = new byte[Math.min(AT_ONCE, rows.length - start)][];
                for (int i = 0; i < some.length; i++) {
                    some[i] = shard.crop(start + i);
                }
                System.arraycopy(embed(some), 0, rows, start, some.length);
            }
            return rows;
        }

        /** Returns embeddings under the model whose trained part was {@code values}. */
        float[][] embedEarlier(float[] values, byte[][] crops) {
            return runtime.embed(model.parameters.with(part, values), crops);
        }

        /** Returns what the network makes of crops with other parameters, not normalised. */
        float[][] features(Parameters parameters, byte[][] crops) {
            return runtime.features(parameters, crops);
        }

        ParameterLayout parameterLayout() {
            return model.spec.layout;
        }

        Parameters parameters() {
            return model.parameters;
        }

        Trained train(byte[][] crops, Objective objective) {
            return runtime.train(model.parameters, part, crops, objective, task.local, seed, shouldStop);
        }

        /** Returns what a round of averaging sends of training, weighted by the images, and sums beside it. */
        Output output(Trained trained, RoundFaces faces, Map<String, Tensor> state, float... beside) {
            int weight = Math.min(faces.crops.length, task.maxWeight);
            return new Output(layout.pack(weight, trained, model.parameters.gather(part), beside), state);
        }
    }

    private Methods() {}

    /** Throws CONFIG for options that this program does not know or cannot do, before anything is fetched. */
    public static void check(TaskSpec task) {
        switch (task.method) {
            case Statistics.NAME:
                Statistics.check(task);
                break;
            case "fedface":
                FedFace.check(task);
                break;
            default:
                require(task.reveals.isEmpty(), task, "privacy.reveals");
                OwnClasses.check(task);
        }
        task.options.end();
    }

    /** Returns what a device sends in a task; throws CONFIG where the method cannot use the part that is trained. */
    public static ContributionLayout layout(TaskSpec task, Model model, ParameterPart part) {
        if (!task.trains()) {
            return Statistics.layout(task, part, model.spec.input.dim);
        }
        return isAgainstEverybody(task)
                ? new ContributionLayout(part, Everybody.lanes(model.spec.input.dim))
                : new ContributionLayout(part);
    }

    /** Returns the names of what the method tells all devices of a round alike; none where it tells nothing. */
    public static List<String> told(TaskSpec task) {
        if (!task.trains()) {
            return Statistics.isMixture(task) ? Collections.singletonList(Statistics.ODDS) : Collections.<String>emptyList();
        }
        return isAgainstEverybody(task) ? Everybody.SHARED : Collections.<String>emptyList();
    }

    /**
     * Returns the fewest devices of a sum that hide each of them as well as a sum over {@code floor} hides equals: what a
     * coordinator tells may weigh the devices of a mixture against one another.
     */
    public static int fewest(TaskSpec task, int floor) {
        return (int) Math.min(Integer.MAX_VALUE, (long) floor * phonesAsOne(task));
    }

    /** Returns how many devices of a sum hide another as well as one that counts as it does. */
    static int phonesAsOne(TaskSpec task) {
        return !task.trains() && Statistics.isMixture(task) ? Statistics.PHONES_AS_ONE : 1;
    }

    private static boolean isAgainstEverybody(TaskSpec task) {
        return task.method.equals("fedface") && FedFace.isAgainstEverybody(task);
    }

    static void require(boolean holds, TaskSpec task, String option) {
        if (!holds) {
            throw new MienException(
                    ErrorCode.CONFIG, "task '" + task.name + "' asks for " + option + ", which this program cannot");
        }
    }

    /** Returns the methods that a device with so many people who agree can take part in. */
    public static List<String> forPeople(int numPeople) {
        return numPeople > 1 ? FOR_SEVERAL : TaskSpec.METHODS;
    }

    /** Throws CONFIG for a method that trains on one person's pictures where these are not one person's. */
    public static void checkPeople(TaskSpec task, int numPeople) {
        if (!forPeople(numPeople).contains(task.method)) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    numPeople + " people agreed to training, and method " + task.method + " trains on the pictures of one;"
                            + " this device stays out of it");
        }
    }

    /**
     * Throws CONFIG where training would need more memory for its part than this program has. The model itself needs none;
     * a part is there as received, as values and momentum before and after a step, and as the two that go into it, and
     * twice more where steps are held near the round's model. What is sent and masked afterwards needs no more.
     */
    public static void checkFits(TaskSpec task, ParameterPart part, long memoryBytes) {
        long copies = task.method.equals("fedprox") ? 9 : 7;
        if (task.trains() && copies * 4 * part.size > memoryBytes) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "task '" + task.name + "' trains " + part.size + " numbers of the model, which needs more memory than this"
                            + " phone has for it; this device stays out of it");
        }
    }

    /** Returns which arrays of a method's state have a row for each person. */
    public static List<String> perIdentity(String method) {
        switch (method) {
            case "fedavg":
                return Collections.singletonList(OwnClasses.OWN);
            case "fedprox":
                return Collections.singletonList(OwnClasses.MANY);
            default:
                return Collections.emptyList();
        }
    }

    /** Returns one device's round on its people's crops. */
    public static Output run(Job job, RoundFaces faces, PublicShard shard) {
        switch (job.task.method) {
            case Statistics.NAME:
                return Statistics.run(job, faces);
            case "fedface":
                return FedFace.run(job, faces, shard);
            case "fedprox":
                return OwnClasses.fedProx(job, faces);
            default:
                return OwnClasses.fedAvg(job, faces, shard);
        }
    }
}
