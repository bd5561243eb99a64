package mien.app.training;

import android.os.Bundle;
import android.view.View;
import android.widget.Button;
import java.util.ArrayList;
import java.util.List;
import mien.app.R;
import mien.app.Rows;
import mien.app.Say;
import mien.app.Screen;
import mien.client.Status;
import mien.client.rounds.Journal;
import mien.client.tasks.Agreement;

/** What this phone sent and received, what happened, and, for whoever has to mend it, what the program said. */
public final class HistoryActivity extends Screen {
    private static final int MOST_PAST = 20;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.history, R.string.history_title);
        onClick(R.id.training_words_show, this::showWords);
    }

    @Override
    protected void onResume() {
        super.onResume();
        work(() -> phone().device().status(), this::showStatus);
    }

    private void showStatus(Status status) {
        Rows sent = new Rows(findViewById(R.id.training_sent));
        sent.fact(0, getString(R.string.sent), Say.bytes(this, status.sentBytes));
        sent.fact(0, getString(R.string.received), Say.bytes(this, status.receivedBytes));
        if (status.numPrivateSums > 0) {
            Agreement agreed = phone().choices.agreement();
            String perModel = Say.count(this, R.plurals.limit_sums, agreed.maxSumsPerModel);
            String today = getString(R.string.sums_today, status.numSumsToday, agreed.maxSumsPerDay, perModel);
            String text = getString(R.string.sums_text) + "\n" + today;
            sent.fact(0, Say.count(this, R.plurals.sums, status.numPrivateSums), text);
        }
        Rows past = new Rows(findViewById(R.id.training_past));
        List<String> words = new ArrayList<>();
        List<Journal.Entry> newest = status.journal.subList(0, Math.min(MOST_PAST, status.journal.size()));
        for (Journal.Entry entry : newest) {
            past.fact(Past.mark(entry), Past.title(this, entry), Past.text(this, entry));
            words.addAll(Past.words(this, entry));
        }
        setVisible(R.id.training_nothing, newest.isEmpty());
        setVisible(R.id.training_diagnostics, !words.isEmpty());
        setText(R.id.training_words, String.join("\n\n", words));
    }

    private void showWords() {
        boolean shows = findViewById(R.id.training_words).getVisibility() != View.VISIBLE;
        setVisible(R.id.training_words, shows);
        this.<Button>findViewById(R.id.training_words_show)
                .setText(shows ? R.string.diagnostics_hide : R.string.diagnostics_show);
    }
}
