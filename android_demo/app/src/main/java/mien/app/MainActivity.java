package mien.app;

import android.app.Activity;
import android.os.Bundle;
import android.widget.Button;
import android.widget.TextView;
import java.io.IOException;
import org.junit.runner.Result;

/** The first screen: what the app is for, what would leave the phone, and the check that this phone can do its part. */
public final class MainActivity extends Activity {
    private Button start;
    private TextView result;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        setContentView(R.layout.main);
        start = findViewById(R.id.self_test);
        result = findViewById(R.id.result);
        start.setOnClickListener(view -> check());
    }

    private void check() {
        start.setEnabled(false);
        result.setText(R.string.testing);
        new Thread(this::run, "self-test").start();
    }

    private void run() {
        String told;
        try {
            told = told(new SelfTest(getAssets(), getCacheDir()).run());
        } catch (IOException | ClassNotFoundException error) {
            told = String.valueOf(error.getMessage());
        }
        String text = told;
        runOnUiThread(
                () -> {
                    result.setText(text);
                    start.setEnabled(true);
                });
    }

    private String told(Result done) {
        if (done.wasSuccessful()) {
            return getString(R.string.passed, done.getRunCount(), done.getRunTime() / 1000.0);
        }
        return getString(R.string.failed, done.getFailureCount(), done.getRunCount()) + SelfTest.failures(done);
    }
}
