package mien.app.training;

import android.Manifest;
import android.content.Intent;
import android.os.Build;
import android.os.Bundle;
import android.os.Handler;
import android.os.Looper;
import android.widget.Button;
import android.widget.ProgressBar;
import android.widget.Switch;
import java.util.List;
import mien.app.Owner;
import mien.app.R;
import mien.app.Rows;
import mien.app.Say;
import mien.app.Screen;
import mien.client.Status;
import mien.client.rounds.Journal;
import mien.client.tasks.Agreement;
import mien.client.tasks.Disclosure;

/** Whether this phone takes part, what it waits for, and how far the round under way is. */
public final class TrainingActivity extends Screen {
    private static final int NOTIFY = 2;
    private static final long LOOK_AGAIN_MS = 2_000;

    private final Handler again = new Handler(Looper.getMainLooper());
    private final Runnable facts = this::showFacts;
    private Runnable unhear = () -> {};
    private Switch takesPart;
    private List<String> shownUnmet;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.training, R.string.training_title);
        takesPart = findViewById(R.id.training_switch);
        takesPart.setOnClickListener(view -> takePart(takesPart.isChecked()));
        onClick(R.id.training_now, this::startOrStop);
        Runnable history = () -> startActivity(new Intent(this, HistoryActivity.class));
        new Rows(findViewById(R.id.training_ways)).way(getString(R.string.history_title), getString(R.string.history_way), history);
    }

    @Override
    protected void onResume() {
        super.onResume();
        showWhetherGuarded();
        unhear = phone().training.hear(this::refresh);
        refresh();
        showFacts();
    }

    @Override
    protected void onPause() {
        unhear.run();
        again.removeCallbacks(facts);
        super.onPause();
    }

    private void refresh() {
        work(() -> phone().device().status(), this::showStatus);
    }

    private void showStatus(Status status) {
        showState(status);
        takesPart.setChecked(phone().choices.letsTrain());
        Rows lie = new Rows(findViewById(R.id.training_lie));
        if (!status.lies.isEmpty()) {
            lie.alarm(getString(R.string.lie_title), getString(R.string.lie_text), this::handOn);
        }
    }

    /** Has the owner choose by what to hand on the evidence of lies. */
    private void handOn() {
        work(
                () -> phone().device().evidence(),
                evidence -> {
                    Intent given = new Intent(Intent.ACTION_SEND).setType("text/plain").putExtra(Intent.EXTRA_TEXT, evidence);
                    startActivity(Intent.createChooser(given, getString(R.string.lie_title)));
                });
    }

    private void showState(Status status) {
        boolean can = status.joined && status.numAgreed > 0;
        boolean runs = phone().training.isRunning();
        Button now = findViewById(R.id.training_now);
        now.setText(runs ? R.string.training_stop : R.string.training_now);
        boolean may = can && phone().choices.letsTrain();
        setVisible(R.id.training_now, runs || may);
        setVisible(R.id.training_now_text, may && !runs);
        setVisible(R.id.training_waiting, may && !runs);
        takesPart.setEnabled(can);
        showRound(runs);
        if (runs) {
            state(R.string.training_runs, getString(phone().training.stage()));
        } else if (status.lostKey) {
            state(R.string.lost_title, getString(R.string.lost_short));
        } else if (!status.joined) {
            state(R.string.training_not_joined, getString(R.string.training_not_joined_text));
        } else if (!can) {
            state(R.string.training_nobody, getString(R.string.training_nobody_text));
        } else if (!phone().choices.trains()) {
            state(R.string.training_off, getString(R.string.training_off_text));
        } else if (phone().choices.paused()) {
            state(R.string.training_paused, getString(R.string.training_paused_text));
        } else {
            state(R.string.training_waits, waiting(status));
        }
    }

    private void state(int title, String text) {
        setText(R.id.training_state, getString(title));
        setText(R.id.training_text, text);
    }

    /** Shows how far the round is that is under way, and what it sends. */
    private void showRound(boolean runs) {
        int step = phone().training.step();
        ProgressBar progress = findViewById(R.id.training_progress);
        progress.setMax(Stages.STEPS);
        progress.setProgress(step);
        progress.setIndeterminate(step == 0);
        setText(R.id.training_step, getString(R.string.training_step, step, Stages.STEPS));
        setVisible(R.id.training_step, step > 0);
        setVisible(R.id.training_round, runs);
        Disclosure told = phone().training.told();
        setVisible(R.id.training_told, runs && told != null);
        if (told != null) {
            String sends = getString(R.string.training_sends, Say.bytes(this, told.numBytes), told.numNumbers, told.fewest);
            setText(R.id.training_told, sends + sources(told) + weights(told) + moments(told) + noise(told));
        }
    }

    /** Returns how many devices of the sum hide nobody from whoever runs them, where there are such. */
    private String sources(Disclosure told) {
        int others = told.fewest - told.sources;
        return told.sources == 0 ? "" : "\n" + getString(R.string.training_sources, told.sources, others);
    }

    /** Returns what the coordinator's choice of weights can do, where it has one. */
    private String weights(Disclosure told) {
        return told.worth == told.fewest ? "" : "\n" + getString(R.string.training_weighed, told.fewest, told.worth);
    }

    /** Returns how well the sum tells who is in it, where it is one of moments in clear. */
    private String moments(Disclosure told) {
        return told.toldApartPercent == 0
                ? ""
                : "\n" + getString(R.string.training_moments, told.toldApartPhones, told.toldApartPercent);
    }

    /** Returns who adds noise, where somebody does. */
    private String noise(Disclosure told) {
        switch (told.noise) {
            case "none":
                return "";
            case "central_gaussian":
                return "\n" + getString(R.string.noise_central, told.epsilon);
            default:
                return "\n" + getString(R.string.noise_local, told.epsilon);
        }
    }

    private String waiting(Status status) {
        StringBuilder text = new StringBuilder(getString(R.string.training_waits_text));
        long next = phone().choices.nextTryMs();
        if (next > System.currentTimeMillis()) {
            text.append('\n').append(getString(R.string.training_not_before, Say.moment(this, next)));
        }
        Journal.Entry last = status.lastRound();
        if (last == null) {
            text.append('\n').append(getString(R.string.training_never));
        } else {
            text.append('\n').append(getString(R.string.training_last, Say.moment(this, last.unixMs), Past.title(this, last)));
        }
        return text.toString();
    }

    /** Shows what training at night waits for, and looks again while the screen is there. */
    private void showFacts() {
        again.removeCallbacks(facts);
        again.postDelayed(facts, LOOK_AGAIN_MS);
        PhoneConditions night = PhoneConditions.byNight(this);
        List<String> unmet = night.unmet();
        if (unmet.equals(shownUnmet)) {
            return; // a screen reader would lose its place in rows made anew
        }
        shownUnmet = unmet;
        Rows rows = new Rows(findViewById(R.id.training_facts));
        fact(rows, night, PhoneConditions.Condition.CHARGING, R.string.charging, R.string.charging_no);
        fact(rows, night, PhoneConditions.Condition.UNMETERED, R.string.unmetered, R.string.unmetered_no);
        fact(rows, night, PhoneConditions.Condition.IDLE, R.string.idle, R.string.idle_no);
    }

    private void fact(Rows rows, PhoneConditions night, PhoneConditions.Condition condition, int title, int ifNot) {
        boolean holds = night.holds(condition);
        int mark = holds ? R.drawable.icon_done : R.drawable.icon_wait;
        rows.fact(mark, getString(title), getString(holds ? R.string.condition_met : ifNot));
    }

    /** Anybody may switch it off; only the owner switches it on. */
    private void takePart(boolean wanted) {
        Intent question = wanted ? phone().owner.question(this) : null;
        if (question != null) {
            takesPart.setChecked(false);
            startActivityForResult(question, Owner.ASKED);
        } else if (wanted) {
            phone().choices.letTrain();
            settle();
        } else {
            phone().choices.pause();
            phone().training.stop();
            settle();
        }
    }

    @Override
    protected void onActivityResult(int asked, int result, Intent data) {
        if (phone().owner.answered(asked, result)) {
            takePart(true);
        }
    }

    private void settle() {
        work(
                () -> {
                    phone().settle(this);
                    return phone().device().status();
                },
                this::showStatus);
    }

    private void startOrStop() {
        if (phone().training.isRunning()) {
            phone().training.stop();
        } else {
            if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.TIRAMISU) {
                // Without it the round goes on all the same, and Android shows it among active apps alone.
                requestPermissions(new String[] {Manifest.permission.POST_NOTIFICATIONS}, NOTIFY);
            }
            RoundService.start(this);
        }
    }
}
