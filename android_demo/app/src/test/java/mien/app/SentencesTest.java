package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertTrue;

import android.content.res.Configuration;
import android.content.res.Resources;
import java.util.Locale;
import mien.client.ErrorCode;
import org.junit.Test;
import org.robolectric.RuntimeEnvironment;

/** Every error of the client's has a sentence, in both languages, that says what to do. */
public class SentencesTest extends ScreenRunner {
    @Test
    public void everyCodeHasASentenceInBothLanguages() {
        Resources english = in(Locale.ENGLISH);
        Resources german = in(Locale.GERMAN);
        for (ErrorCode code : ErrorCode.values()) {
            String told = Sentences.of(english, code);
            assertTrue(code + ": what happened, and what to do", told.indexOf(". ") > 0 && told.endsWith("."));
            assertNotEquals(code.name(), told, Sentences.of(german, code));
            boolean isUnknown = told.equals(english.getString(R.string.error_other));
            assertEquals(code.name(), code == ErrorCode.OTHER, isUnknown);
        }
    }

    private static Resources in(Locale locale) {
        Configuration configuration = new Configuration();
        configuration.setLocale(locale);
        return RuntimeEnvironment.getApplication().createConfigurationContext(configuration).getResources();
    }
}
