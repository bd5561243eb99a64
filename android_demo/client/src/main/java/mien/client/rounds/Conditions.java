package mien.client.rounds;

import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;

/** Whether the phone may work now: idle, charging, on a network that costs nothing. */
public interface Conditions {
    /** Returns what is missing, in words; empty: go on. Asked again before every step of training, message, piece. */
    List<String> unmet();

    /** Returns the usual conditions; what is missing has the names "idle", "charging" and "unmetered". */
    static Conditions of(BooleanSupplier idle, BooleanSupplier charging, BooleanSupplier unmetered) {
        return () -> {
            List<String> unmet = new ArrayList<>();
            if (!idle.getAsBoolean()) {
                unmet.add("idle");
            }
            if (!charging.getAsBoolean()) {
                unmet.add("charging");
            }
            if (!unmetered.getAsBoolean()) {
                unmet.add("unmetered");
            }
            return unmet;
        };
    }
}
