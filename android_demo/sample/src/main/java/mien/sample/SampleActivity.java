package mien.sample;

import android.app.Activity;
import android.os.Bundle;
import android.widget.Button;
import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.TextView;
import java.util.Collections;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Supplier;
import mien.client.Device;
import mien.client.MienException;
import mien.client.Participation;
import mien.client.rounds.Event;
import mien.client.rounds.Listener;
import mien.client.rounds.Outcome;
import mien.client.tasks.Agreement;
import mien.client.tasks.Disclosure;

/** Joins a fleet by a pasted invite, fetches its model, and takes part in a round that can be stopped. */
public final class SampleActivity extends Activity implements Listener {
    private final ExecutorService beside = Executors.newSingleThreadExecutor();
    private Device device; // of the thread beside the main one alone
    private volatile Participation round;
    private TextView told;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        LinearLayout all = new LinearLayout(this);
        all.setOrientation(LinearLayout.VERTICAL);
        EditText invite = new EditText(this);
        told = new TextView(this);
        all.addView(invite);
        all.addView(button("Join", () -> work(() -> "joined as " + device.join(invite.getText().toString()).deviceId)));
        all.addView(button("Fetch the model", () -> work(() -> device.update() ? "a new model" : "the same model")));
        all.addView(button("Take part", () -> work(this::takePart)));
        all.addView(button("Stop", () -> { if (round != null) round.cancel(); }));
        all.addView(told);
        setContentView(all);
        work(() -> {
            // A real app gives keys of AndroidKeyStore: .keys(...).identityKeys(...), as android_demo/app/keys does.
            device = Device.at(getNoBackupFilesDir().toPath().resolve("mien")).keysInFiles().open();
            return device.hasJoined() ? "joined" : "paste an invite";
        });
    }

    private String takePart() {
        round = device.participation(new Agreement(), Collections::emptyList, this);
        round.run();
        Outcome how = round.outcome().join(); // or, without waiting, thenAccept
        return how.kind + " " + how.reason;
    }

    @Override
    public void disclose(Disclosure leaves) {
        say(leaves.numNumbers + " numbers leave, masked, in a sum over " + leaves.fewest + " phones or more");
    }

    @Override
    public void on(Event event) {
        say(event.word());
    }

    private void work(Supplier<String> job) {
        beside.execute(() -> {
            try {
                say(job.get());
            } catch (CompletionException error) {
                say(error.getCause().getMessage());
            } catch (MienException error) {
                say(error.getMessage()); // what happened, and what to do; error.code() for an app's own words
            }
        });
    }

    private void say(String text) {
        runOnUiThread(() -> told.setText(text));
    }

    private Button button(String text, Runnable action) {
        Button button = new Button(this);
        button.setText(text);
        button.setOnClickListener(view -> action.run());
        return button;
    }

    @Override
    protected void onDestroy() {
        beside.execute(() -> device.close());
        beside.shutdown();
        super.onDestroy();
    }
}
