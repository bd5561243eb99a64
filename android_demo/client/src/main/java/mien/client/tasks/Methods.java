package mien.client.tasks;

import java.util.ArrayList;
import java.util.LinkedHashMap;
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
import mien.client.train.LocalSpec;
import mien.client.train.Objective;
import mien.client.train.Tensor;
import mien.client.train.Trained;

/** The device halves that this program has, by the method's name, and what is common to their rounds. */
public final class Methods {
    /** A part is there as received, as values and momentum before and after a step, and as the two that go into it. */
    static final int PLAIN_COPIES = 7;

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
        final TaskSpec task;
        final long seed;
        /** Bytes of this round that this device alone knows. */
        final byte[] secret;
        /** The name by which the server knows this device. */
        final String device;

        private final GraphRuntime runtime;
        private final Model model;
        final ParameterPart part;
        final ContributionLayout layout;
        final Told told;
        private final Map<String, Model> others;
        private final BooleanSupplier shouldStop;

        /** Puts together what a method's device half works on, and what has it stop. */
        public Job(
                GraphRuntime runtime,
                Model model,
                ParameterPart part,
                ContributionLayout layout,
                TaskSpec task,
                String device,
                long seed,
                byte[] secret,
                Told told,
                Map<String, Model> others,
                BooleanSupplier shouldStop) {
            this.told = told;
            this.others = others;
            this.runtime = runtime;
            this.model = model;
            this.part = part;
            this.layout = layout;
            this.task = task;
            this.device = device;
            this.seed = seed;
            this.secret = secret;
            this.shouldStop = shouldStop;
        }

        int dim() {
            return model.spec.input.dim;
        }

        float[][] embed(byte[][] crops) {
            return embed(model.parameters, crops);
        }

        float[][] embed(Parameters parameters, byte[][] crops) {
            return runtime.embed(parameters, crops);
        }

        /** Returns embeddings of all public people's crops. */
        float[][] embed(PublicShard shard) {
            return runtime.embed(model.parameters, shard, shard.everyCrop());
        }

        /** Returns embeddings of some crops of public people. */
        float[][] embed(Parameters parameters, PublicShard shard, int[] chosen) {
            return runtime.embed(parameters, shard, chosen);
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

        /** Returns the parameters of another model that the task names. */
        Parameters parametersOf(String modelId) {
            return others.get(modelId).parameters;
        }

        Trained train(byte[][] crops, Objective objective) {
            return train(crops, objective, task.local);
        }

        Trained train(byte[][] crops, Objective objective, LocalSpec local) {
            return runtime.train(model.parameters, part, crops, objective, local, seed, shouldStop);
        }

        /** Returns the crops' mirror images. */
        byte[][] mirrored(byte[][] crops) {
            byte[][] mirrored = new byte[crops.length][];
            for (int i = 0; i < crops.length; i++) {
                mirrored[i] = model.spec.input.mirrored(crops[i]);
            }
            return mirrored;
        }

        /** Returns what a round of averaging sends of training, weighted by the images, and sums beside it. */
        Output output(Trained trained, RoundFaces faces, Map<String, Tensor> state, float... beside) {
            return output(weight(faces.crops.length), trained, state, beside);
        }

        /** As the other, of that weight. */
        Output output(int weight, Trained trained, Map<String, Tensor> state, float... beside) {
            return new Output(layout.pack(weight, trained, model.parameters.gather(part), beside), state);
        }

        /** Returns what so many images weigh. */
        int weight(int numImages) {
            return Math.min(numImages, task.maxWeight);
        }
    }

    private Methods() {}

    private static final Map<String, DeviceHalf> BY_NAME = new LinkedHashMap<>();

    static {
        DeviceHalf[] all = {
            new FedAvg(), new FedProx(), new FedFace(), new Statistics(), new Evaluation(), new FedFr(), new FedGc(),
            new Scaffold(), new Mime(), new PfmFv(), new FedFrUda()
        };
        for (DeviceHalf each : all) {
            BY_NAME.put(each.name, each);
        }
    }

    /** Returns whether this program has a method's device half. */
    static boolean has(String name) {
        return BY_NAME.containsKey(name);
    }

    /** Returns a method's device half; throws CONFIG where this program has none. */
    static DeviceHalf of(String name) {
        DeviceHalf half = BY_NAME.get(name);
        if (half == null) {
            throw new MienException(ErrorCode.CONFIG, "this program has no method " + name + "; upgrade it");
        }
        return half;
    }

    /** Throws CONFIG for options that this program does not know or cannot do, before anything is fetched. */
    public static void check(TaskSpec task) {
        task.half().check(task);
        task.options.end();
        require(task.hasValidators == task.half().isValidated(task), task, "validators other than its method's");
    }

    /** Returns what a device sends in a task; throws CONFIG where the method cannot use the part that is trained. */
    public static ContributionLayout layout(TaskSpec task, Model model, ParameterPart part) {
        return task.half().layout(task, part, model.spec.input.dim);
    }

    /** Returns the names of what the method tells all devices of a round alike; none where it tells nothing. */
    public static List<String> told(TaskSpec task) {
        return task.half().told(task);
    }

    /** Returns the ids of the models that a device needs beside the round's. */
    public static List<String> otherModels(TaskSpec task) {
        return task.half().otherModels(task);
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
        return task.half().phonesAsOne(task);
    }

    static void require(boolean holds, TaskSpec task, String option) {
        if (!holds) {
            throw new MienException(
                    ErrorCode.CONFIG, "task '" + task.name + "' asks for " + option + ", which this program cannot");
        }
    }

    /** Returns the methods that a device with so many people who agree can take part in, as far as its owner lets it. */
    public static List<String> forPeople(int numPeople, Agreement agreement) {
        List<String> names = new ArrayList<>();
        for (DeviceHalf each : BY_NAME.values()) {
            if ((numPeople == 1 || each.isForSeveral()) && (agreement.measures || !each.measures())) {
                names.add(each.name);
            }
        }
        return names;
    }

    /** Throws CONFIG for a method that trains on one person's pictures where these are not one person's. */
    public static void checkPeople(TaskSpec task, int numPeople) {
        if (numPeople > 1 && !task.half().isForSeveral()) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    numPeople + " people agreed to training, and method " + task.method + " trains on the pictures of one;"
                            + " this device stays out of it");
        }
    }

    /**
     * Throws CONFIG where training would need more memory for its part than this program has. The model itself needs none;
     * a part is there as received, as values and momentum before and after a step, and as the two that go into it, and
     * more where a method says so. What is sent and masked afterwards needs no more.
     */
    public static void checkFits(TaskSpec task, ParameterPart part, long memoryBytes) {
        if (task.trains() && 4L * task.half().copies(task) * part.size > memoryBytes) {
            throw new MienException(
                    ErrorCode.CONFIG,
                    "task '" + task.name + "' trains " + part.size + " numbers of the model, which needs more memory than this"
                            + " phone has for it; this device stays out of it");
        }
    }

    /** Returns which arrays of a method's state have a row for each person. */
    public static List<String> perIdentity(String method) {
        return of(method).perIdentity;
    }

    /** Returns one device's round on its people's crops. */
    public static Output run(Job job, RoundFaces faces, PublicShard shard) {
        return job.task.half().run(job, faces, shard);
    }
}
