package mien.app;

import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.app.Dialog;
import android.app.KeyguardManager;
import android.graphics.Bitmap;
import android.graphics.Canvas;
import android.os.Looper;
import android.os.StrictMode;
import android.os.strictmode.Violation;
import android.view.View;
import android.widget.ScrollView;
import android.widget.TextView;
import android.window.OnBackInvokedCallback;
import android.window.OnBackInvokedDispatcher;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import mien.client.Device;
import mien.client.enrol.Lockout;
import org.junit.After;
import org.junit.Before;
import org.junit.runner.RunWith;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import org.robolectric.util.ReflectionHelpers;

/** What tests of screens share: Android's own drawing, the real app but for its key store, waiting, pictures to look at. */
@RunWith(RobolectricTestRunner.class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = 34, qualifiers = ScreenRunner.DAY, application = TestApp.class)
public abstract class ScreenRunner {
    protected static final String DAY = "w360dp-h720dp-xhdpi";
    protected static final String NIGHT = "w360dp-h720dp-night-xhdpi";
    protected static final String GERMAN = "de-w360dp-h720dp-xhdpi";
    protected static final String GERMAN_NIGHT = "de-w360dp-h720dp-night-xhdpi";
    private static final List<Violation> WAITED = new CopyOnWriteArrayList<>();
    protected static final String RIGHT_TO_LEFT = "ar-ldrtl-w360dp-h720dp-xhdpi";
    protected static final String ACROSS = "w720dp-h360dp-land-xhdpi";
    protected static final String TABLET = "w800dp-h1280dp-large-hdpi";
    private static final int TALLEST = 4000;
    private static final int DIM = 0x99000000;
    private static final long PATIENCE_MS = 600_000;

    protected static Phone phone() {
        return ((App) RuntimeEnvironment.getApplication()).phone();
    }

    /** Returns what the app opens beside the main thread; a test may wait for it. */
    protected static Device device() {
        return phone().open().device;
    }

    protected static Lockout lockout() {
        return phone().open().lockout;
    }

    /** Does what the app does beside the main thread, there, and waits for it. */
    protected static void beside(Runnable job) {
        RuntimeException[] failed = new RuntimeException[1];
        Thread thread =
                new Thread(
                        () -> {
                            try {
                                job.run();
                            } catch (RuntimeException error) {
                                failed[0] = error;
                            }
                        });
        thread.start();
        await("it is done beside the main thread", () -> !thread.isAlive());
        if (failed[0] != null) {
            throw failed[0];
        }
    }

    /** Keeps a thread of the app's busy until a test lets it go on. */
    protected static boolean waited(CountDownLatch latch) {
        try {
            return latch.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
            throw new AssertionError(error);
        }
    }

    /** Keeps what the app does on its thread for the network, and what takes long, from beginning; returns what lets it begin. */
    protected static Runnable hold() {
        CountDownLatch go = new CountDownLatch(1);
        phone().work.ask(() -> waited(go), went -> {}, error -> {});
        return go::countDown;
    }

    protected static void settle() {
        beside(() -> phone().settle(RuntimeEnvironment.getApplication()));
    }

    /** Goes back as Android 13 and later do it; returns whether the screen wanted to be asked. */
    protected static boolean goBack(Activity screen) {
        Object window = ReflectionHelpers.getField(screen.getOnBackInvokedDispatcher(), "mActualDispatcher");
        Map<OnBackInvokedCallback, Integer> registered = ReflectionHelpers.getField(window, "mAllCallbacks");
        for (Map.Entry<OnBackInvokedCallback, Integer> each : registered.entrySet()) {
            if (each.getValue() == OnBackInvokedDispatcher.PRIORITY_DEFAULT) {
                each.getKey().onBackInvoked();
                return true;
            }
        }
        return false;
    }

    static Deleting.Done everythingDeleted(long patienceMs) {
        Deleting.Done[] done = new Deleting.Done[1];
        beside(() -> done[0] = Deleting.everything(RuntimeEnvironment.getApplication(), patienceMs));
        return done[0];
    }

    /** Has Android's strict mode watch this thread, the main one, for what would keep a phone's screen from being drawn. */
    @Before
    public void watch() {
        WAITED.clear();
        RuntimeEnvironment.getApplication().getApplicationInfo().setEnableOnBackInvokedCallback(true); // as the manifest says
        StrictMode.setThreadPolicy(
                new StrictMode.ThreadPolicy.Builder()
                        .detectCustomSlowCalls()
                        .detectNetwork()
                        .penaltyListener(Runnable::run, WAITED::add)
                        .build());
    }

    @After
    public void nothingWaitedOnTheMainThread() {
        Shadows.shadowOf(Looper.getMainLooper()).idle();
        StrictMode.setThreadPolicy(StrictMode.ThreadPolicy.LAX);
        if (!WAITED.isEmpty()) {
            throw new AssertionError(WAITED.size() + " waited on the main thread", WAITED.get(0));
        }
    }

    /** Returns how often the main thread waited until now, which is no fault of the test any more. */
    protected static int forgiven() {
        Shadows.shadowOf(Looper.getMainLooper()).idle(); // which tells of it
        int waited = WAITED.size();
        WAITED.clear();
        return waited;
    }

    /** Has this phone belong to a fleet whose servers are away. */
    protected static void join() throws IOException, GeneralSecurityException {
        Fleet.join(phone().home());
    }

    /** Gives this phone a lock of its own. */
    protected static void lock() {
        KeyguardManager lock = RuntimeEnvironment.getApplication().getSystemService(KeyguardManager.class);
        Shadows.shadowOf(lock).setIsDeviceSecure(true);
        Shadows.shadowOf(lock).setIsKeyguardSecure(true);
    }

    /** Returns what a screen shows at an id. */
    protected static String text(Activity screen, int id) {
        return ((TextView) screen.findViewById(id)).getText().toString();
    }

    protected static boolean isShown(Activity screen, int id) {
        View view = screen.findViewById(id);
        return view != null && view.getVisibility() == View.VISIBLE;
    }

    /** Lets the app's threads work until something is so. */
    protected static void await(String what, BooleanSupplier holds) {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            Shadows.shadowOf(Looper.getMainLooper()).idle();
            if (holds.getAsBoolean()) {
                return;
            }
            assertTrue("in vain: " + what, System.currentTimeMillis() < end);
            try {
                Thread.sleep(20);
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
        }
    }

    /** Writes a picture of a screen as it is at first sight. */
    protected static void draw(Activity screen, String name) throws IOException {
        draw(screen, name, height());
    }

    /** Writes a picture of all that a screen shows when it is scrolled. */
    protected static void drawWhole(Activity screen, String name) throws IOException {
        draw(screen, name, TALLEST);
    }

    /** Writes a picture of a dialog over the screen that asks, which is dimmed as Android dims it. */
    protected static void drawDialog(Activity screen, Dialog dialog, String name) throws IOException {
        View below = screen.getWindow().getDecorView();
        lay(below, height());
        View all = dialog.getWindow().getDecorView();
        all.measure(
                View.MeasureSpec.makeMeasureSpec(width(), View.MeasureSpec.EXACTLY),
                View.MeasureSpec.makeMeasureSpec(height(), View.MeasureSpec.AT_MOST));
        all.layout(0, 0, width(), all.getMeasuredHeight());
        Bitmap picture = Bitmap.createBitmap(width(), height(), Bitmap.Config.ARGB_8888);
        Canvas canvas = new Canvas(picture);
        below.draw(canvas);
        canvas.drawColor(DIM);
        canvas.translate(0, (height() - all.getMeasuredHeight()) / 2f);
        all.draw(canvas);
        write(picture, name);
    }

    private static int width() {
        return RuntimeEnvironment.getApplication().getResources().getDisplayMetrics().widthPixels;
    }

    private static int height() {
        return RuntimeEnvironment.getApplication().getResources().getDisplayMetrics().heightPixels;
    }

    private static void draw(Activity screen, String name, int atMost) throws IOException {
        View all = screen.getWindow().getDecorView();
        all.jumpDrawablesToCurrentState();
        int height = height();
        lay(all, height);
        View scrolling = screen.findViewById(R.id.scrolling);
        if (atMost > height && scrolling instanceof ScrollView) {
            View inside = ((ScrollView) scrolling).getChildAt(0);
            int hidden = inside.getHeight() + scrolling.getPaddingBottom() - scrolling.getHeight();
            height = Math.min(atMost, height + Math.max(0, hidden));
            lay(all, height);
        }
        write(all, height, name);
    }

    private static void write(View all, int height, String name) throws IOException {
        Bitmap picture = Bitmap.createBitmap(width(), height, Bitmap.Config.ARGB_8888);
        all.draw(new Canvas(picture));
        write(picture, name);
    }

    private static void write(Bitmap picture, String name) throws IOException {
        File file = new File(System.getProperty("mien.pictures"), name + ".png");
        StrictMode.ThreadPolicy watched = StrictMode.getThreadPolicy();
        StrictMode.setThreadPolicy(StrictMode.ThreadPolicy.LAX); // writing a picture is slow, and the test's own
        try (FileOutputStream out = new FileOutputStream(file)) {
            picture.compress(Bitmap.CompressFormat.PNG, 100, out);
        } finally {
            StrictMode.setThreadPolicy(watched);
        }
    }

    private static void lay(View all, int height) {
        all.measure(
                View.MeasureSpec.makeMeasureSpec(width(), View.MeasureSpec.EXACTLY),
                View.MeasureSpec.makeMeasureSpec(height, View.MeasureSpec.EXACTLY));
        all.layout(0, 0, width(), height);
    }
}
