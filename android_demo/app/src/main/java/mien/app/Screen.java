package mien.app;

import android.app.Activity;
import android.graphics.Insets;
import android.os.Build;
import android.os.Bundle;
import android.view.LayoutInflater;
import android.view.View;
import android.view.ViewGroup;
import android.view.WindowInsets;
import android.view.WindowManager;
import android.widget.ScrollView;
import android.widget.TextView;
import android.window.OnBackInvokedCallback;
import android.window.OnBackInvokedDispatcher;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Supplier;
import mien.client.MienException;

/** A screen: a way back, a title, a place for messages, its own layout; slow work is done beside the main thread. */
public abstract class Screen extends Activity {
    private Runnable insteadOfBack;
    private Object backGesture;
    private UnderWay underWay;

    /** What is under way, and the screen that hears of it: the next one of its kind once this was turned. */
    private static final class UnderWay {
        Screen screen;
    }

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        underWay = (UnderWay) getLastNonConfigurationInstance();
        if (underWay != null) {
            underWay.screen = this;
        }
        if (showsFaces()) {
            getWindow().addFlags(WindowManager.LayoutParams.FLAG_SECURE);
        }
    }

    /** Returns whether faces, names or an invite are to be seen: then no screenshot and no list of recent apps shows them. */
    protected boolean showsFaces() {
        return false;
    }

    /** Returns whether there is nothing to go back to. */
    protected boolean isHome() {
        return false;
    }

    protected final Phone phone() {
        return Phone.of(this);
    }

    /** Shows a layout that scrolls. */
    protected final void show(int layout, int title) {
        frame(title);
        ViewGroup inside = findViewById(R.id.inside);
        LayoutInflater.from(this).inflate(R.layout.scrolling, inside);
        ScrollView scrolling = findViewById(R.id.scrolling);
        LayoutInflater.from(this).inflate(layout, scrolling);
    }

    /** The same, with a layout below it that stays in sight: what is to be decided. */
    protected final void show(int layout, int bar, int title) {
        show(layout, title);
        ViewGroup place = findViewById(R.id.bar);
        LayoutInflater.from(this).inflate(bar, place);
        place.setVisibility(View.VISIBLE);
    }

    /** Shows a layout that fills what the title leaves: for a picture of the camera. */
    protected final void showFilling(int layout, int title) {
        frame(title);
        LayoutInflater.from(this).inflate(layout, findViewById(R.id.inside));
    }

    private void frame(int title) {
        setContentView(R.layout.screen);
        title(title);
        View back = findViewById(R.id.back);
        back.setVisibility(isHome() ? View.GONE : View.VISIBLE);
        back.setOnClickListener(view -> goBack());
        findViewById(R.id.screen).setOnApplyWindowInsetsListener(Screen::clear);
    }

    protected final void title(int title) {
        setTitle(title);
        setText(R.id.title, getText(title));
    }

    /** Keeps clear of bars, the camera and the keyboard, under all of which a screen lies from Android 15 on. */
    @SuppressWarnings("deprecation") // all that Android 10 has
    private static WindowInsets clear(View screen, WindowInsets insets) {
        if (Build.VERSION.SDK_INT < Build.VERSION_CODES.R) {
            screen.setPadding(
                    insets.getSystemWindowInsetLeft(), insets.getSystemWindowInsetTop(), insets.getSystemWindowInsetRight(),
                    insets.getSystemWindowInsetBottom());
            return insets.consumeSystemWindowInsets();
        }
        int kinds = WindowInsets.Type.systemBars() | WindowInsets.Type.displayCutout() | WindowInsets.Type.ime();
        Insets inside = insets.getInsets(kinds);
        screen.setPadding(inside.left, inside.top, inside.right, inside.bottom);
        return WindowInsets.CONSUMED;
    }

    /** Has the way back, by gesture, button or arrow, do this; null: leave the screen, as it does from the beginning. */
    protected final void onBack(Runnable instead) {
        insteadOfBack = instead;
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.TIRAMISU) {
            backGesture = BackGesture.follow(this, backGesture, instead);
        }
    }

    private void goBack() {
        if (insteadOfBack == null) {
            finish();
        } else {
            insteadOfBack.run();
        }
    }

    /** How Android up to 12 tells of it; later ones ask beforehand, so that they can show where it leads. */
    @Override
    @SuppressWarnings("deprecation")
    public void onBackPressed() {
        if (insteadOfBack == null) {
            super.onBackPressed();
        } else {
            insteadOfBack.run();
        }
    }

    /** What Android 10 to 12 do not have, in a class that they never load. */
    private static final class BackGesture {
        /** Returns what is registered now, in place of what was. */
        static Object follow(Activity screen, Object before, Runnable instead) {
            OnBackInvokedDispatcher dispatcher = screen.getOnBackInvokedDispatcher();
            if (before != null) {
                dispatcher.unregisterOnBackInvokedCallback((OnBackInvokedCallback) before);
            }
            if (instead == null) {
                return null;
            }
            OnBackInvokedCallback now = instead::run;
            dispatcher.registerOnBackInvokedCallback(OnBackInvokedDispatcher.PRIORITY_DEFAULT, now);
            return now;
        }
    }

    /** Says at a gate that is the owner's alone whether nothing guards it. */
    protected final void showWhetherGuarded() {
        setVisible(R.id.no_lock, !Owner.hasLock(this));
    }

    /** Does a job beside the main thread, and then something with its result, unless the screen has gone. */
    protected final <T> void work(Supplier<T> job, Consumer<T> done, Consumer<MienException> failed) {
        phone().work.run(job, whileHere(done), whileHere(failed));
    }

    /** The same for a job that asks the network. */
    protected final <T> void ask(Supplier<T> job, Consumer<T> done, Consumer<MienException> failed) {
        phone().work.ask(job, whileHere(done), whileHere(failed));
    }

    /**
     * Does a job that takes long, beside what other screens ask for; whichever screen shows it at its end, this one or the one
     * that came when it was turned, is told of that. One at a time.
     */
    protected final <T> void keepOn(
            Supplier<T> job, BiConsumer<Screen, T> done, BiConsumer<Screen, MienException> failed) {
        UnderWay begun = new UnderWay();
        begun.screen = this;
        underWay = begun;
        phone().work.ask(job, atEndOf(begun, done), atEndOf(begun, failed));
    }

    private static <T> Consumer<T> atEndOf(UnderWay begun, BiConsumer<Screen, T> action) {
        return value -> {
            Screen screen = begun.screen;
            screen.underWay = null;
            if (!screen.isDestroyed()) {
                action.accept(screen, value);
            }
        };
    }

    /** Returns whether something was begun by {@link #keepOn}, also before the screen was turned, and goes on. */
    protected final boolean isUnderWay() {
        return underWay != null;
    }

    @Override
    public final Object onRetainNonConfigurationInstance() {
        return underWay;
    }

    private <T> Consumer<T> whileHere(Consumer<T> action) {
        return value -> {
            if (!isDestroyed()) {
                action.accept(value);
            }
        };
    }

    /** Where a sentence is all that is to be done about an error. */
    protected final <T> void work(Supplier<T> job, Consumer<T> done) {
        work(job, done, this::say);
    }

    protected final <T> void ask(Supplier<T> job, Consumer<T> done) {
        ask(job, done, this::say);
    }

    protected final void say(MienException error) {
        complain(Sentences.of(getResources(), error));
    }

    /** Shows a message below the title, and has a screen reader say it; null takes it away. */
    protected final void say(CharSequence text) {
        message(text, R.drawable.card_tint, R.color.on_tint);
    }

    /** The same for what did not work, or must not go on. */
    protected final void complain(CharSequence text) {
        message(text, R.drawable.card_danger, R.color.on_danger_tint);
    }

    private void message(CharSequence text, int ground, int colour) {
        TextView message = findViewById(R.id.message);
        message.setBackgroundResource(ground);
        message.setTextColor(getColor(colour));
        message.setText(text);
        message.setVisibility(text == null ? View.GONE : View.VISIBLE);
    }

    protected final void onClick(int id, Runnable action) {
        findViewById(id).setOnClickListener(view -> action.run());
    }

    protected final void setText(int id, CharSequence text) {
        ((TextView) findViewById(id)).setText(text);
    }

    protected final void setVisible(int id, boolean visible) {
        findViewById(id).setVisibility(visible ? View.VISIBLE : View.GONE);
    }
}
