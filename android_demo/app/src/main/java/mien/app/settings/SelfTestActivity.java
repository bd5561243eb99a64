package mien.app.settings;

import android.content.Context;
import android.os.Bundle;
import android.widget.ImageView;
import java.io.IOException;
import java.util.function.Consumer;
import mien.app.R;
import mien.app.Screen;
import mien.client.MienException;
import org.junit.runner.Result;

/** The check that this phone can do its part: the client's own tests and vectors. */
public final class SelfTestActivity extends Screen {
    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.self_test, R.string.self_test_title);
        onClick(R.id.self_test, this::check);
        if (isUnderWay()) {
            showWorking();
        }
    }

    private void check() {
        Context app = getApplicationContext();
        keepOn(
                () -> told(new SelfTest(app.getAssets(), app.getCacheDir())),
                (screen, shown) -> shown.accept((SelfTestActivity) screen),
                (screen, error) -> ((SelfTestActivity) screen).failed(error));
        showWorking();
    }

    private void showWorking() {
        setWorking(true);
        setVisible(R.id.self_test_answer, false);
        say(getString(R.string.self_test_working));
    }

    private void failed(MienException error) {
        setWorking(false);
        say(error);
    }

    private void setWorking(boolean works) {
        findViewById(R.id.self_test).setEnabled(!works);
        setVisible(R.id.self_test_progress, works);
    }

    /** Returns what shows the answer; beside the main thread. */
    private static Consumer<SelfTestActivity> told(SelfTest test) {
        try {
            Result done = test.run();
            return screen -> screen.show(done);
        } catch (IOException | ClassNotFoundException error) {
            String why = String.valueOf(error.getMessage());
            return screen -> {
                screen.setWorking(false);
                screen.complain(screen.getString(R.string.self_test_impossible, why));
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
