package mien.app.settings;

import android.app.AlertDialog;
import android.content.Context;
import android.view.LayoutInflater;
import android.view.ViewGroup;
import android.widget.RadioButton;
import android.widget.TextView;
import mien.app.Extras;
import mien.app.Limit;
import mien.app.OwnersScreen;
import mien.app.R;
import mien.app.Say;

/** One limit of the owner's (an extra names it): what a choice costs that protects less is said before it is taken. */
public final class LimitActivity extends OwnersScreen {
    private Limit limit;

    @Override
    protected void open() {
        String name = getIntent().getStringExtra(Extras.LIMIT);
        limit = name == null ? Limit.FEWEST : Limit.valueOf(name);
        show(R.layout.limit, limit.title);
        ((TextView) findViewById(R.id.limit_what)).setText(limit.what);
        ((TextView) findViewById(R.id.limit_costs)).setText(limit.costs);
        showChoices();
    }

    /** Returns a choice in words. */
    static String said(Context context, Limit limit, int choice) {
        return choice == 0 && limit.none != 0
                ? context.getString(limit.none)
                : Say.count(context, limit.number, choice);
    }

    private int present() {
        return phone().choices.of(limit);
    }

    private void showChoices() {
        ViewGroup column = findViewById(R.id.limit);
        column.removeAllViews();
        for (int each : limit.choices) {
            RadioButton choice =
                    (RadioButton) LayoutInflater.from(this).inflate(R.layout.limit_choice, column, false);
            choice.setText(said(this, limit, each));
            choice.setChecked(each == present());
            choice.setOnClickListener(view -> choose(each));
            column.addView(choice);
        }
    }

    private void choose(int wanted) {
        if (!limit.isLess(wanted, present())) {
            demand(wanted);
            return;
        }
        String present = said(this, limit, present());
        new AlertDialog.Builder(this)
                .setTitle(R.string.limit_lower_title)
                .setMessage(getString(limit.lowerText, present))
                .setPositiveButton(R.string.limit_lower_do, (dialog, which) -> demand(wanted))
                .setNegativeButton(getString(R.string.limit_keep, present), null)
                .setOnDismissListener(dialog -> showChoices())
                .show();
    }

    private void demand(int wanted) {
        phone().choices.demand(limit, wanted);
        showChoices();
    }
}
