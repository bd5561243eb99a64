package mien.app;

import static org.junit.Assert.assertTrue;

import android.content.Context;
import android.graphics.Color;
import org.junit.Test;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.annotation.Config;

/** Text can be read by day and by night: 4.5 to 1 or more (WCAG 2.2, 1.4.3). */
public class ColoursTest extends ScreenRunner {
    private static final int[][] TEXT_ON_GROUND = {
        {R.color.text, R.color.ground},
        {R.color.text, R.color.card},
        {R.color.text_quiet, R.color.ground},
        {R.color.text_quiet, R.color.card},
        {R.color.text_quiet, R.color.line},
        {R.color.accent, R.color.card},
        {R.color.danger, R.color.card},
        {R.color.on_accent, R.color.accent},
        {R.color.on_danger, R.color.danger},
        {R.color.on_tint, R.color.tint},
        {R.color.on_danger_tint, R.color.danger_tint},
    };

    @Test
    public void textCanBeReadByDay() {
        check();
    }

    @Test
    @Config(qualifiers = NIGHT)
    public void textCanBeReadByNight() {
        check();
    }

    private static void check() {
        Context context = RuntimeEnvironment.getApplication();
        for (int[] pair : TEXT_ON_GROUND) {
            double contrast = contrast(context.getColor(pair[0]), context.getColor(pair[1]));
            String names = context.getResources().getResourceName(pair[0]) + " on " + context.getResources().getResourceName(pair[1]);
            assertTrue(names + ": " + contrast, contrast >= 4.5);
        }
    }

    private static double contrast(int one, int other) {
        double a = Color.luminance(one);
        double b = Color.luminance(other);
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }
}
