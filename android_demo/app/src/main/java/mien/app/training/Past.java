package mien.app.training;

import android.content.Context;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import mien.app.R;
import mien.app.Say;
import mien.app.Sentences;
import mien.client.ErrorCode;
import mien.client.rounds.Journal;
import mien.client.rounds.Outcome;

/** What happened, in the owner's language. */
final class Past {
    private Past() {}

    /** Returns how a step ended. */
    static String title(Context context, Journal.Entry entry) {
        switch (entry.kind) {
            case COUNTED:
                return Say.count(context, R.plurals.past_counted, entry.numReports);
            case NOT_COUNTED:
                return context.getString(R.string.past_not_counted);
            case FAILED:
                return context.getString(R.string.past_failed);
            case WAIT:
                return context.getString(hasEnough(entry) ? R.string.past_enough : R.string.past_wait);
            default:
                return context.getString(R.string.past_not_now);
        }
    }

    /** Returns when, and why. */
    static String text(Context context, Journal.Entry entry) {
        List<String> lines = new ArrayList<>();
        String when = Say.moment(context, entry.unixMs);
        lines.add(entry.times > 1 ? context.getString(R.string.past_times, when, entry.times) : when);
        switch (entry.kind) {
            case COUNTED:
                break;
            case WAIT:
                if (hasEnough(entry)) {
                    lines.add(context.getString(R.string.past_enough_text));
                }
                break;
            case NOT_NOW:
                lines.add(missing(context, entry.reason));
                break;
            default:
                lines.add(why(context, ErrorCode.of(entry.code)));
                break;
        }
        return String.join("\n", lines);
    }

    /** Returns what kept a round from ending; of all that is asked of others, rounds alone are tried again by themselves. */
    private static String why(Context context, ErrorCode code) {
        switch (code) {
            case UNREACHABLE:
                return context.getString(R.string.past_unreachable);
            case DRAINING:
            case RATE_LIMITED:
                return context.getString(R.string.past_busy);
            default:
                return Sentences.of(context.getResources(), code);
        }
    }

    /** Returns what the program itself said, with its time, for whoever has to mend it; nothing where all went well. */
    static List<String> words(Context context, Journal.Entry entry) {
        boolean isSaid = entry.kind == Outcome.Kind.FAILED || entry.kind == Outcome.Kind.NOT_COUNTED;
        return isSaid
                ? Collections.singletonList(Say.moment(context, entry.unixMs) + " " + entry.code + ": " + entry.reason)
                : Collections.<String>emptyList();
    }

    private static boolean hasEnough(Journal.Entry entry) {
        return entry.code.equals(ErrorCode.BUDGET_EXCEEDED.code());
    }

    static int mark(Journal.Entry entry) {
        switch (entry.kind) {
            case COUNTED:
                return R.drawable.icon_done;
            case WAIT:
            case NOT_NOW:
                return R.drawable.icon_wait;
            default:
                return R.drawable.icon_not;
        }
    }

    private static String missing(Context context, String words) {
        List<String> names = new ArrayList<>();
        for (String word : words.split(", ")) {
            names.add(context.getString(missing(word)));
        }
        return String.join("\n", names);
    }

    private static int missing(String word) {
        switch (word) {
            case "charging":
                return R.string.missing_charging;
            case "unmetered":
                return R.string.missing_unmetered;
            case "idle":
                return R.string.missing_idle;
            case "busy":
                return R.string.missing_busy;
            default:
                return R.string.missing_stopped;
        }
    }
}
