package mien.client.fl;

import java.util.List;

/** Whether the phone may work now: idle, charging, on a network that costs nothing. */
public interface Conditions {
    /** Returns what is missing, in words; empty: go on. */
    List<String> unmet();
}
