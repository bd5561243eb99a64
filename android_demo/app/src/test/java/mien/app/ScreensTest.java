package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.graphics.Bitmap;
import android.graphics.Canvas;
import android.os.Looper;
import android.view.View;
import android.widget.Button;
import android.widget.TextView;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.Robolectric;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;

/** The screen as Android draws it, in both languages, by day and by night; pictures are written for people to look at. */
@RunWith(RobolectricTestRunner.class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = 34, qualifiers = "w360dp-h720dp-xhdpi")
public class ScreensTest {
    private static final int WIDTH = 720;
    private static final int HEIGHT = 1440;
    private static final long PATIENCE_MS = 120_000;

    @Test
    public void theFirstScreen() throws IOException {
        Activity screen = Robolectric.buildActivity(MainActivity.class).setup().get();
        draw(screen, "first");
    }

    @Test
    @Config(qualifiers = "de-w360dp-h720dp-night-xhdpi")
    public void theFirstScreenInGermanByNight() throws IOException {
        Activity screen = Robolectric.buildActivity(MainActivity.class).setup().get();
        Button start = screen.findViewById(R.id.self_test);
        assertEquals("Dieses Telefon prüfen", start.getText().toString());
        assertTrue("large enough to hit", start.getMinHeight() >= 96);
        draw(screen, "first-de-night");
    }

    @Test
    public void theCheckPasses() throws Exception {
        Activity screen = Robolectric.buildActivity(MainActivity.class).setup().get();
        Button start = screen.findViewById(R.id.self_test);
        TextView result = screen.findViewById(R.id.result);
        start.performClick();
        assertEquals(screen.getString(R.string.testing), result.getText().toString());
        for (long end = System.currentTimeMillis() + PATIENCE_MS; !start.isEnabled(); Thread.sleep(100)) {
            assertTrue("the check ends", System.currentTimeMillis() < end);
            Shadows.shadowOf(Looper.getMainLooper()).idle();
        }
        assertTrue(result.getText().toString(), result.getText().toString().startsWith("All 32 checks"));
        draw(screen, "checked");
    }

    private static void draw(Activity screen, String name) throws IOException {
        View all = screen.getWindow().getDecorView();
        all.measure(
                View.MeasureSpec.makeMeasureSpec(WIDTH, View.MeasureSpec.EXACTLY),
                View.MeasureSpec.makeMeasureSpec(HEIGHT, View.MeasureSpec.EXACTLY));
        all.layout(0, 0, WIDTH, HEIGHT);
        Bitmap picture = Bitmap.createBitmap(WIDTH, HEIGHT, Bitmap.Config.ARGB_8888);
        all.draw(new Canvas(picture));
        File file = new File(System.getProperty("mien.pictures"), name + ".png");
        try (FileOutputStream out = new FileOutputStream(file)) {
            picture.compress(Bitmap.CompressFormat.PNG, 100, out);
        }
    }
}
