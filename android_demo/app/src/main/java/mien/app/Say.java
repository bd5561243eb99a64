package mien.app;

import android.content.Context;
import android.text.format.DateUtils;
import android.text.format.Formatter;

/** Numbers and times as the owner's language writes them. */
public final class Say {
    private Say() {}

    /** Returns a day and a time of it. */
    public static String moment(Context context, long unixMs) {
        return DateUtils.formatDateTime(
                context, unixMs, DateUtils.FORMAT_SHOW_DATE | DateUtils.FORMAT_SHOW_TIME | DateUtils.FORMAT_ABBREV_MONTH);
    }

    public static String day(Context context, long unixMs) {
        return DateUtils.formatDateTime(
                context, unixMs, DateUtils.FORMAT_SHOW_DATE | DateUtils.FORMAT_SHOW_YEAR | DateUtils.FORMAT_ABBREV_MONTH);
    }

    public static String bytes(Context context, long count) {
        return Formatter.formatFileSize(context, count);
    }

    /** Returns a count with its noun in the right number. */
    public static String count(Context context, int plural, int count) {
        return context.getResources().getQuantityString(plural, count, count);
    }
}
