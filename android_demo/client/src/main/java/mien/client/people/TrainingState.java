package mien.client.people;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import mien.client.train.Rows;
import mien.client.train.Tensor;

/**
 * What training keeps of a task, by whose it is: each person's own rows, and what is of all of them together.
 *
 * <p>A method numbers identities from 0 and keeps arrays with one row for each. A phone keeps rows by person, so that one
 * can leave and the others' stay; what was trained on everybody's pictures goes with anybody who leaves.
 */
public final class TrainingState {
    /** By person, then by the method's name. */
    final Map<Integer, Map<String, Tensor>> own = new LinkedHashMap<>();

    final Map<String, Tensor> together = new LinkedHashMap<>();
    /** Whose {@code together} is, in the order of their numbers; empty where it is nobody's. */
    final List<Integer> members = new ArrayList<>();

    /** Returns a method's state by whose it is; identity number k is {@code people[k]}. */
    public static TrainingState of(Map<String, Tensor> state, List<Integer> people, List<String> perIdentity) {
        TrainingState kept = new TrainingState();
        if (perIdentity.isEmpty() && people.size() == 1) {
            kept.own.put(people.get(0), state);
            return kept;
        }
        kept.members.addAll(people);
        for (Map.Entry<String, Tensor> each : state.entrySet()) {
            if (!perIdentity.contains(each.getKey())) {
                kept.together.put(each.getKey(), each.getValue());
                continue;
            }
            float[][] rows = Rows.rows(each.getValue(), each.getValue().values().length / people.size());
            for (int k = 0; k < people.size(); k++) {
                kept.own.computeIfAbsent(people.get(k), person -> new LinkedHashMap<>())
                        .put(each.getKey(), Tensor.vector(rows[k]));
            }
        }
        return kept;
    }

    /** Returns people in the order of their numbers: whoever has rows keeps their place before whoever is new. */
    public List<Integer> order(List<Integer> people) {
        List<Integer> sorted = new ArrayList<>(people);
        Collections.sort(sorted);
        Set<Integer> order = new LinkedHashSet<>(members);
        order.retainAll(people);
        for (int person : sorted) {
            if (own.containsKey(person)) {
                order.add(person);
            }
        }
        order.addAll(sorted);
        return new ArrayList<>(order);
    }

    /** Returns the state that fits a round of people in that order; what is of several counts while all take part. */
    public Map<String, Tensor> forRound(List<Integer> order, List<String> perIdentity) {
        boolean isContinued =
                order.size() >= members.size()
                        && order.subList(0, members.size()).equals(members)
                        && (!members.isEmpty() || Collections.disjoint(own.keySet(), order));
        if (perIdentity.isEmpty() && order.size() == 1) {
            Map<String, Tensor> alone = own.get(order.get(0));
            return alone == null ? new LinkedHashMap<>() : alone;
        }
        Map<String, Tensor> state = new LinkedHashMap<>();
        if (isContinued) {
            state.putAll(together);
        }
        for (String name : perIdentity) {
            List<float[]> rows = new ArrayList<>();
            for (int person : order) {
                if (own.containsKey(person) && own.get(person).containsKey(name)) {
                    rows.add(own.get(person).get(name).values());
                }
            }
            if (!rows.isEmpty() && areAlike(rows)) {
                state.put(name, Rows.tensor(rows.toArray(new float[0][])));
            }
        }
        return state;
    }

    private static boolean areAlike(List<float[]> rows) {
        for (float[] row : rows) {
            if (row.length != rows.get(0).length) {
                return false;
            }
        }
        return true;
    }
}
