package mien.client.train;

import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;

/** What a method's device half minimises: a form that a graph was made for, its tensors and constants. */
public final class Objective {
    public static final String WEIGHTS = "sample_weight";

    final String form;
    /** Trained beside the model, and never sent. */
    final Map<String, Tensor> privateTensors = new LinkedHashMap<>();
    /** Inputs that stay as they are. */
    final Map<String, Tensor> fixed = new LinkedHashMap<>();
    /** Rows for each crop, in order. */
    final Map<String, Tensor> perCrop = new LinkedHashMap<>();

    final Map<String, Double> constants = new LinkedHashMap<>();
    /** Private tensors whose rows stay at length 1. */
    final Set<String> unitNorm = new LinkedHashSet<>();

    /** With what momentum private tensors begin, by name; 0 where it is not said. */
    final Map<String, Tensor> velocity = new LinkedHashMap<>();

    /** How strongly each step is drawn back to where the part began; 0: not at all. */
    double proximal;

    /** What is added to the gradient of the part in each step; null: nothing. */
    float[] offset;

    /** By what the gradient of the part is multiplied in each step. */
    double gradientScale = 1;

    /** Begins an objective by the name of its form among the exported graphs. */
    public Objective(String form) {
        this.form = form;
    }

    /** Adds a tensor that trains with the model, whose rows are brought back to length one where it is a unit. */
    public Objective trained(String name, Tensor tensor, boolean isUnit) {
        privateTensors.put(name, tensor);
        if (isUnit) {
            unitNorm.add(name);
        }
        return this;
    }

    /** Adds a tensor that stays as it is. */
    public Objective fixed(String name, Tensor tensor) {
        fixed.put(name, tensor);
        return this;
    }

    /** Adds a tensor of which each step takes the rows of its images. */
    public Objective rows(String name, Tensor tensor) {
        perCrop.put(name, tensor);
        return this;
    }

    /** Adds a number that stays as it is. */
    public Objective constant(String name, double value) {
        constants.put(name, value);
        return this;
    }

    /** Returns a tensor that trains with the model; null where there is none of that name. */
    public Tensor privateTensor(String name) {
        return privateTensors.get(name);
    }

    /** Lets a tensor that trains with the model begin with this momentum, instead of none. */
    public Objective velocity(String name, Tensor momentum) {
        velocity.put(name, momentum);
        return this;
    }

    /** Multiplies the gradient of the part in each step. */
    public Objective gradientScale(double scale) {
        gradientScale = scale;
        return this;
    }

    /** Adds the same to the gradient of the part in each step. */
    public Objective offset(float[] added) {
        offset = added;
        return this;
    }

    /** Returns the same problem, whose steps are those of plain SGD from rest. */
    public Objective plain() {
        Objective same = new Objective(form);
        same.privateTensors.putAll(privateTensors);
        same.fixed.putAll(fixed);
        same.perCrop.putAll(perCrop);
        same.constants.putAll(constants);
        same.unitNorm.addAll(unitNorm);
        return same;
    }

    /** Adds half of so much times the squared distance from the round's model (FedProx). */
    public Objective proximal(double strength) {
        proximal = strength;
        return this;
    }
}
