package mien.app;

import mien.client.tasks.Agreement;

/** What the owner limits for every sum that this phone is in; its choices from the one that protects least on. */
public enum Limit {
    /** The fewest phones over which a sum has to go. */
    FEWEST(
            "fewest", new int[] {4, 8, 16, 32, 64}, R.plurals.fewest, 0, R.string.fewest_title, R.string.fewest_what,
            R.string.fewest_costs, R.string.fewest_lower_text),
    /** Whether sums of templates multiplied with themselves may be opened in clear (1). */
    MOMENTS(
            "moments", new int[] {1, 0}, R.plurals.moments, R.string.moments_none, R.string.moments_title,
            R.string.moments_what, R.string.moments_costs, R.string.moments_lower_text),
    /** How many days ago the registrar has to have admitted a phone that counts towards them; 0: all count. */
    PEER_AGE(
            "peer_age_days", new int[] {0, 1, 7, 30}, R.plurals.peer_age, R.string.peer_age_none, R.string.peer_age_title,
            R.string.peer_age_what, R.string.peer_age_costs, R.string.peer_age_lower_text),
    /** Whether younger ones count as well whose hardware attested their key (1). */
    ATTESTED(
            "attested_count", new int[] {1, 0}, R.plurals.attested, R.string.attested_none, R.string.attested_title,
            R.string.attested_what, R.string.attested_costs, R.string.attested_lower_text),
    /** The largest epsilon of all sums together; 0: no limit. */
    EPSILON(
            "epsilon", new int[] {0, 16, 8, 4, 2, 1}, R.plurals.epsilon, R.string.epsilon_none, R.string.epsilon_title,
            R.string.epsilon_what, R.string.epsilon_costs, R.string.epsilon_lower_text),
    /** The most sums that the same pictures go into over one model. */
    PER_MODEL(
            "sums_per_model", new int[] {4, 2, 1}, R.plurals.limit_sums, 0, R.string.per_model_title, R.string.per_model_what,
            R.string.per_model_costs, R.string.per_model_lower_text),
    /** The most of them in 24 hours, over whatever models. */
    PER_DAY(
            "sums_per_day", new int[] {48, 24, 12, 6, 1}, R.plurals.limit_sums, 0, R.string.per_day_title,
            R.string.per_day_what, R.string.per_day_costs, R.string.per_day_lower_text);

    /** By what name {@link Choices} keeps it. */
    public final String key;

    public final int[] choices;
    public final int number;
    /** What 0 is called, where it is no number of anything; else 0. */
    public final int none;

    public final int title;
    public final int what;
    public final int costs;
    public final int lowerText;

    Limit(String key, int[] choices, int number, int none, int title, int what, int costs, int lowerText) {
        this.key = key;
        this.choices = choices;
        this.number = number;
        this.none = none;
        this.title = title;
        this.what = what;
        this.costs = costs;
        this.lowerText = lowerText;
    }

    /** Returns what holds until the owner chooses: what the client's own default is. */
    public int standard() {
        Agreement standard = new Agreement();
        switch (this) {
            case FEWEST:
                return standard.minCohort;
            case MOMENTS:
                return standard.reveals.contains(Agreement.CLASS_MOMENT) ? 1 : 0;
            case PEER_AGE:
                return standard.minPeerAgeDays;
            case ATTESTED:
                return standard.countsAttestedPeers ? 1 : 0;
            case EPSILON:
                return Double.isInfinite(standard.maxEpsilon) ? 0 : (int) standard.maxEpsilon;
            case PER_MODEL:
                return standard.maxSumsPerModel;
            default:
                return standard.maxSumsPerDay;
        }
    }

    /** Returns whether a choice protects less than another one. */
    public boolean isLess(int choice, int than) {
        for (int each : choices) {
            if (each == than) {
                return false;
            }
            if (each == choice) {
                return true;
            }
        }
        return false;
    }
}
