package androidx.test.runner.intent;

public final class IntentStubberRegistry {
    private static IntentStubber instance;

    private IntentStubberRegistry() {}

    public static boolean isLoaded() {
        return instance != null;
    }

    public static IntentStubber getInstance() {
        return instance;
    }

    public static void load(IntentStubber given) {
        instance = given;
    }

    public static void reset() {
        instance = null;
    }
}
