package mien.app.settings;

import android.app.AlertDialog;
import android.view.LayoutInflater;
import android.view.ViewGroup;
import android.widget.RadioButton;
import mien.app.OwnersScreen;
import mien.app.R;
import mien.app.Say;

/** Over how many phones a sum has to go that this phone is in: what fewer of them cost is said before they are taken. */
public final class FewestActivity extends OwnersScreen {
    private static final int[] FEWEST = {4, 8, 16, 32, 64};

    @Override
    protected void open() {
        show(R.layout.fewest, R.string.fewest_title);
        showChoices();
    }

    private void showChoices() {
        ViewGroup column = findViewById(R.id.fewest);
        column.removeAllViews();
        for (int fewest : FEWEST) {
            RadioButton choice =
                    (RadioButton) LayoutInflater.from(this).inflate(R.layout.fewest_choice, column, false);
            choice.setText(Say.count(this, R.plurals.fewest, fewest));
            choice.setChecked(fewest == phone().choices.fewest());
            choice.setOnClickListener(view -> choose(fewest));
            column.addView(choice);
        }
    }

    private void choose(int fewest) {
        int present = phone().choices.fewest();
        if (fewest >= present) {
            demand(fewest);
            return;
        }
        new AlertDialog.Builder(this)
                .setTitle(getString(R.string.fewest_lower_title, fewest))
                .setMessage(getString(R.string.fewest_lower_text, present))
                .setPositiveButton(R.string.fewest_lower_do, (dialog, which) -> demand(fewest))
                .setNegativeButton(getString(R.string.fewest_keep, present), null)
                .setOnDismissListener(dialog -> showChoices())
                .show();
    }

    private void demand(int fewest) {
        phone().choices.demand(fewest);
        showChoices();
    }
}
