package mien.app.people;

import android.content.Intent;
import android.text.Editable;
import android.text.TextWatcher;
import android.widget.EditText;
import java.util.Locale;
import mien.app.Deleting;
import mien.app.MainActivity;
import mien.app.OwnersScreen;
import mien.app.R;
import mien.client.MienException;

/** Deletes everything, after a word was typed that nobody types by chance. */
public final class DeleteActivity extends OwnersScreen {
    private boolean isWorking;

    @Override
    protected void open() {
        show(R.layout.delete, R.string.delete_title);
        setText(R.id.delete_type, getString(R.string.delete_type, getString(R.string.delete_word)));
        EditText word = findViewById(R.id.delete_word);
        word.addTextChangedListener(
                new TextWatcher() {
                    @Override
                    public void beforeTextChanged(CharSequence text, int start, int count, int after) {}

                    @Override
                    public void onTextChanged(CharSequence text, int start, int before, int count) {
                        findViewById(R.id.delete_do).setEnabled(isTheWord(text) && !isWorking);
                    }

                    @Override
                    public void afterTextChanged(Editable text) {}
                });
        onClick(R.id.delete_do, this::delete);
        onClick(R.id.deleted_done, this::beginAnew);
    }

    private boolean isTheWord(CharSequence text) {
        String wanted = getString(R.string.delete_word);
        return text.toString().trim().toUpperCase(Locale.ROOT).equals(wanted.toUpperCase(Locale.ROOT));
    }

    private void delete() {
        isWorking = true;
        findViewById(R.id.delete_do).setEnabled(false);
        say(getString(R.string.delete_working));
        work(() -> Deleting.everything(this), this::deleted, this::failed);
    }

    private void failed(MienException error) {
        isWorking = false;
        findViewById(R.id.delete_do).setEnabled(true);
        say(error);
    }

    private void deleted(Deleting.Done done) {
        say((CharSequence) null);
        setVisible(R.id.delete_asking, false);
        setVisible(R.id.deleted, true);
        setText(R.id.deleted_text, getString(text(done), done.deviceId));
    }

    private static int text(Deleting.Done done) {
        if (done.deviceId.isEmpty()) {
            return R.string.deleted_never_joined;
        }
        return done.told ? R.string.deleted_told : R.string.deleted_not_told;
    }

    /** What the screens below show is gone. */
    private void beginAnew() {
        startActivity(
                new Intent(this, MainActivity.class)
                        .addFlags(Intent.FLAG_ACTIVITY_NEW_TASK | Intent.FLAG_ACTIVITY_CLEAR_TASK));
    }
}
