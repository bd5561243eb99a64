package mien.app.settings;

import android.os.Bundle;
import android.widget.ImageView;
import java.io.IOException;
import mien.app.R;
import mien.app.Screen;
import org.junit.runner.Result;

/** The check that this phone can do its part: the client's own tests and vectors. */
public final class SelfTestActivity extends Screen {
    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.self_test, R.string.self_test_title);
        onClick(R.id.self_test, this::check);
    }

    private void check() {
        setWorking(true);
        setVisible(R.id.self_test_answer, false);
        say(getString(R.string.self_test_working));
        work(() -> told(new SelfTest(getAssets(), getCacheDir())), Runnable::run);
    }

    private void setWorking(boolean works) {
        findViewById(R.id.self_test).setEnabled(!works);
        setVisible(R.id.self_test_progress, works);
    }

    /** Returns what shows the answer; beside the main thread. */
    private Runnable told(SelfTest test) {
        try {
            Result done = test.run();
            return () -> show(done);
        } catch (IOException | ClassNotFoundException error) {
            String text = getString(R.string.self_test_impossible, String.valueOf(error.getMessage()));
            return () -> {
                setWorking(false);
                complain(text);
            };
        }
    }

    void show(Result done) {
        setWorking(false);
        say((CharSequence) null);
        boolean passed = done.wasSuccessful();
        String failed = getString(R.string.self_test_failed, done.getFailureCount(), done.getRunCount());
        this.<ImageView>findViewById(R.id.self_test_mark).setImageResource(passed ? R.drawable.icon_done : R.drawable.icon_wrong);
        setText(R.id.self_test_title, getText(passed ? R.string.self_test_passed_title : R.string.self_test_failed_title));
        setText(
                R.id.result,
                passed
                        ? getString(R.string.self_test_passed, done.getRunCount(), done.getRunTime() / 1000.0)
                        : getString(R.string.self_test_failed_text));
        setText(R.id.self_test_failures, failed + SelfTest.failures(done));
        setVisible(R.id.self_test_failures, !passed);
        setVisible(R.id.self_test_answer, true);
    }
}
