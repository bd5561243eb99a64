package mien.app;

import android.view.LayoutInflater;
import android.view.View;
import android.view.ViewGroup;
import android.widget.ImageView;
import android.widget.TextView;

/** Fills a column with rows: ways to other screens, which are cards, and facts with a mark, which are not. */
public final class Rows {
    private final ViewGroup column;

    /** Begins anew in a column. */
    public Rows(ViewGroup column) {
        this.column = column;
        column.removeAllViews();
    }

    /** Adds a way to somewhere. */
    public Rows way(CharSequence title, CharSequence text, Runnable action) {
        View row = row(R.layout.row, title, text);
        row.setOnClickListener(view -> action.run());
        return this;
    }

    /** Adds a way that must not be overlooked. */
    public Rows alarm(CharSequence title, CharSequence text, Runnable action) {
        way(title, text, action);
        column.getChildAt(column.getChildCount() - 1).setBackgroundResource(R.drawable.card_danger);
        return this;
    }

    /** Adds a fact, with the mark that says how it stands (0: none); the text says it too. */
    public Rows fact(int mark, CharSequence title, CharSequence text) {
        View row = row(R.layout.fact, title, text);
        row.setScreenReaderFocusable(true);
        ImageView shown = row.findViewById(R.id.row_mark);
        if (mark != 0) {
            shown.setImageResource(mark);
            shown.setVisibility(View.VISIBLE);
        }
        return this;
    }

    private View row(int layout, CharSequence title, CharSequence text) {
        View row = LayoutInflater.from(column.getContext()).inflate(layout, column, false);
        ((TextView) row.findViewById(R.id.row_title)).setText(title);
        TextView below = row.findViewById(R.id.row_text);
        below.setText(text);
        below.setVisibility(text == null ? View.GONE : View.VISIBLE);
        column.addView(row);
        return row;
    }
}
