package mien.client.tasks;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import mien.client.model.ParameterPart;
import mien.client.model.PublicShard;

/**
 * A method's device half: what it asks of a task, what a device sends and is told, and what it makes of people's crops.
 *
 * <p>What a method does not say is as in averaging: the change of the model is sent and nothing else, and nothing is told.
 * The source of each is the file of the same method in {@code mien/methods}.
 */
abstract class DeviceHalf {
    final String name;
    /** Which arrays of the state have a row for each person. */
    final List<String> perIdentity;

    DeviceHalf(String name, String... perIdentity) {
        this.name = name;
        this.perIdentity = Collections.unmodifiableList(Arrays.asList(perIdentity));
    }

    /** Throws CONFIG for what this program does not know or cannot do; options that it did not look at are refused too. */
    abstract void check(TaskSpec task);

    /** Returns what a device sends; throws CONFIG where the method cannot use the part that is trained. */
    ContributionLayout layout(TaskSpec task, ParameterPart part, int dim) {
        return new ContributionLayout(part);
    }

    /** Returns the names of what all devices of a round are told alike, in the order in which it is hashed. */
    List<String> told(TaskSpec task) {
        return Collections.emptyList();
    }

    /** Returns the ids of the models that a device needs beside the round's. */
    List<String> otherModels(TaskSpec task) {
        return Collections.emptyList();
    }

    /** Returns whether a device changes the model; if not, it only embeds with it. */
    boolean trains() {
        return true;
    }

    /** Returns whether rounds say how good a model is, and leave it as it was. */
    boolean measures() {
        return false;
    }

    /** Returns whether the sums of all rounds add up, so that a device is in one of a task at most. */
    boolean addsUp() {
        return false;
    }

    /** Returns whether a device takes the crops of several people, whom labels number. */
    boolean isForSeveral() {
        return true;
    }

    /** Returns whether validators, a role of their own, choose among models that are made of the sum. */
    boolean isValidated(TaskSpec task) {
        return false;
    }

    /** Returns how many devices of a sum hide another as well as one that counts as it does. */
    int phonesAsOne(TaskSpec task) {
        return 1;
    }

    /** Returns how many times the part that is trained is in memory at once, before anything is sent. */
    int copies(TaskSpec task) {
        return Methods.PLAIN_COPIES;
    }

    /** Returns one device's round on its people's crops; {@code shard} is null where the model has no public faces. */
    abstract Methods.Output run(Methods.Job job, RoundFaces faces, PublicShard shard);
}
