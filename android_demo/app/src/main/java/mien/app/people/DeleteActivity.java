package mien.app.people;

import android.content.Intent;
import android.text.Editable;
import android.text.TextWatcher;
import android.widget.EditText;
import java.util.Locale;
import mien.app.Deleting;
import mien.app.Deletion;
import mien.app.MainActivity;
import mien.app.OwnersScreen;
import mien.app.R;

/** Deletes everything, after a word was typed that nobody types by chance. */
public final class DeleteActivity extends OwnersScreen {
    private Deletion deletion;

    @Override
    protected void open() {
        deletion = Deletion.of(this);
        show(R.layout.delete, R.string.delete_title);
        setText(R.id.delete_type, getString(R.string.delete_type, getString(R.string.delete_word)));
        EditText word = findViewById(R.id.delete_word);
        word.addTextChangedListener(
                new TextWatcher() {
                    @Override
                    public void beforeTextChanged(CharSequence text, int start, int count, int after) {}

                    @Override
                    public void onTextChanged(CharSequence text, int start, int before, int count) {}

                    @Override
                    public void afterTextChanged(Editable text) {
                        allowDeleting();
                    }
                });
        onClick(R.id.delete_do, () -> deletion.begin(this));
        onClick(R.id.deleted_done, this::beginAnew);
        deletion.onChange(this::showState);
        showState();
    }

    private void allowDeleting() {
        String typed = this.<EditText>findViewById(R.id.delete_word).getText().toString();
        String wanted = getString(R.string.delete_word);
        boolean isTheWord = typed.trim().toUpperCase(Locale.ROOT).equals(wanted.toUpperCase(Locale.ROOT));
        findViewById(R.id.delete_do).setEnabled(isTheWord && !deletion.isRunning());
    }

    private void showState() {
        Deleting.Done done = deletion.done(this);
        allowDeleting();
        onBack(done == null ? null : this::beginAnew);
        setVisible(R.id.delete_asking, done == null);
        setVisible(R.id.deleted, done != null);
        if (done != null) {
            setText(R.id.deleted_text, getString(text(done), done.deviceId));
        }
        if (deletion.error() != null) {
            say(deletion.error());
        } else {
            say(deletion.isRunning() ? getString(R.string.delete_working) : null);
        }
    }

    private static int text(Deleting.Done done) {
        if (done.deviceId.isEmpty()) {
            return R.string.deleted_never_joined;
        }
        return done.told ? R.string.deleted_told : R.string.deleted_not_told;
    }

    @Override
    protected void onDestroy() {
        if (deletion != null) {
            deletion.onChange(() -> {});
        }
        super.onDestroy();
    }

    /** What the screens below show is gone. */
    private void beginAnew() {
        startActivity(
                new Intent(this, MainActivity.class)
                        .addFlags(Intent.FLAG_ACTIVITY_NEW_TASK | Intent.FLAG_ACTIVITY_CLEAR_TASK));
    }
}
