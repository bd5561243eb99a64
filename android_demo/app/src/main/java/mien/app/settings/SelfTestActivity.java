package mien.app.settings;

import android.os.Bundle;
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
        findViewById(R.id.self_test).setEnabled(false);
        setText(R.id.result, getString(R.string.self_test_working));
        work(
                () -> told(new SelfTest(getAssets(), getCacheDir())),
                text -> {
                    setText(R.id.result, text);
                    findViewById(R.id.self_test).setEnabled(true);
                });
    }

    private String told(SelfTest test) {
        try {
            Result done = test.run();
            if (done.wasSuccessful()) {
                return getString(R.string.self_test_passed, done.getRunCount(), done.getRunTime() / 1000.0);
            }
            String counts = getString(R.string.self_test_failed, done.getFailureCount(), done.getRunCount());
            return counts + SelfTest.failures(done);
        } catch (IOException | ClassNotFoundException error) {
            return getString(R.string.self_test_impossible, String.valueOf(error.getMessage()));
        }
    }
}
