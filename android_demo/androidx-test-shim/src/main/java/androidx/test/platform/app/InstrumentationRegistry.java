package androidx.test.platform.app;

import android.app.Instrumentation;
import android.os.Bundle;

public final class InstrumentationRegistry {
    private static Instrumentation instrumentation;
    private static Bundle arguments;

    private InstrumentationRegistry() {}

    public static Instrumentation getInstrumentation() {
        if (instrumentation == null) {
            throw new IllegalStateException("no instrumentation was registered");
        }
        return instrumentation;
    }

    public static Bundle getArguments() {
        return new Bundle(arguments);
    }

    public static void registerInstance(Instrumentation given, Bundle with) {
        instrumentation = given;
        arguments = new Bundle(with);
    }
}
