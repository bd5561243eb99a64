package mien.app.training;

import android.content.Context;
import android.os.Handler;
import android.os.Looper;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import mien.app.Phone;
import mien.app.R;
import mien.app.Work;
import mien.client.Clock;
import mien.client.MienException;
import mien.client.rounds.Event;
import mien.client.rounds.Listener;
import mien.client.rounds.Outcome;
import mien.client.tasks.Disclosure;

/**
 * Taking part in rounds, one at a time, on a thread of its own. It ends when it is stopped, when a condition ends, or when
 * nothing can be done; what was trained until then is kept, and the next time goes on with it.
 */
public final class Training implements Listener {
    /** A longer wait than this is left to the next time. */
    private static final long LONGEST_WAIT_MS = 5 * 60_000;
    private static final long FAILED_PAUSE_MS = 60_000;

    private static final long LONGEST_END_MS = 60_000;
    private final Handler main = new Handler(Looper.getMainLooper());
    private final Phone phone;
    private PhoneConditions conditions;
    private Thread thread;
    private final List<Runnable> hearing = new CopyOnWriteArrayList<>();
    private volatile int stage = R.string.stage_connecting;
    private volatile int step;
    private volatile boolean isComputing;
    private volatile Disclosure told;

    public Training(Phone phone) {
        this.phone = phone;
    }

    /** Returns whether megabytes may be fetched now. */
    public static boolean mayFetch(Context context) {
        return PhoneConditions.now(context).unmet().isEmpty();
    }

    /** Returns whether a thread takes part in rounds. */
    public synchronized boolean isRunning() {
        return thread != null;
    }

    /** Returns the sentence for what is being done, where anything is. */
    int stage() {
        return stage;
    }

    /** Returns the step of the running round, 1 to {@link Stages#STEPS}; 0 before it has begun. */
    int step() {
        return step;
    }

    /** Returns what the running round was said to send; null before it was. */
    Disclosure told() {
        return told;
    }

    /** Has something run on the main thread whenever anything here changes, until what is returned runs. */
    Runnable hear(Runnable action) {
        hearing.add(action);
        return () -> hearing.remove(action);
    }

    /**
     * Takes part by night, round after round, until stopped; then says so on the main thread. Not before the time that the
     * coordinator named.
     */
    boolean startByNight(Context context, Runnable ended) {
        return System.currentTimeMillis() >= phone.choices.nextTryMs() && start(PhoneConditions.byNight(context), false, ended);
    }

    /**
     * Takes part now, in one round; then says so on the main thread. Returns whether it begins. The time that the coordinator
     * named holds here too: a near one is waited for, for a later one nothing is asked.
     */
    boolean startNow(Context context, Runnable ended) {
        return start(PhoneConditions.now(context), true, ended);
    }

    /** Begins unless it is running or the owner does not let this phone train; returns whether it did. */
    private synchronized boolean start(PhoneConditions allowed, boolean once, Runnable ended) {
        if (thread != null || !phone.choices.letsTrain()) {
            return false;
        }
        conditions = allowed;
        stage = R.string.stage_connecting;
        step = 0;
        thread = new Thread(() -> run(allowed, once, ended), "mien-training");
        thread.start();
        changed();
        return true;
    }

    /**
     * Stops as soon as a step can be left: at once while it waits for others, after a step of training else. The coordinator
     * is told first that it left, where others wait for it; stopping again ends that.
     */
    public synchronized void stop() {
        if (thread != null) {
            boolean isAgain = conditions.isStopped();
            conditions.stop();
            if (isAgain || !isComputing) {
                thread.interrupt();
            }
        }
    }

    /** Stops, and waits until the thread has let go of everything, a minute at most. */
    public void stopAndWait() {
        Thread running;
        synchronized (this) {
            stop();
            running = thread;
        }
        if (running != null) {
            try {
                running.join(LONGEST_END_MS);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void run(PhoneConditions allowed, boolean once, Runnable ended) {
        try {
            takePart(allowed, once);
        } catch (MienException error) {
            // The client's journal has it, where the screen finds it; the next time tries again.
            long nextMs = System.currentTimeMillis() + error.retryAfterMs();
            phone.choices.tryAgainAt(Math.max(nextMs, phone.choices.nextTryMs())); // stopped while it waits for that time, say
        } catch (RuntimeException | OutOfMemoryError | StackOverflowError error) {
            phone.choices.tryAgainAt(System.currentTimeMillis() + FAILED_PAUSE_MS);
            note(Work.unforeseen(error));
        } finally {
            synchronized (this) {
                thread = null;
            }
            isComputing = false;
            told = null;
            changed();
            main.post(ended);
        }
    }

    /** Where it cannot be noted, the disk full say, the next time is told of it all the same. */
    private void note(MienException error) {
        try {
            phone.device().note(error);
        } catch (MienException unnoted) {
            // Nobody is there to be told, and no error of a thread's ends the app.
        }
    }

    private void takePart(PhoneConditions allowed, boolean once) {
        if (!waits(phone.choices.nextTryMs() - System.currentTimeMillis())) {
            return;
        }
        while (!allowed.isStopped()) {
            Outcome outcome = phone.device().participate(phone.choices.agreement(), allowed, this);
            if (outcome.kind == Outcome.Kind.NOT_NOW || (outcome.round != null && once)) {
                return;
            }
            if (outcome.kind == Outcome.Kind.WAIT || outcome.kind == Outcome.Kind.FAILED) {
                // A coordinator whose rounds are refused, one that lies say, has others at once.
                long pauseMs = outcome.kind == Outcome.Kind.FAILED ? FAILED_PAUSE_MS : outcome.retryAfterMs;
                phone.choices.tryAgainAt(System.currentTimeMillis() + pauseMs);
                if (!waits(pauseMs)) {
                    return;
                }
            }
        }
    }

    /** Waits, unless that is too long; returns whether it did. */
    private boolean waits(long pauseMs) {
        if (pauseMs > LONGEST_WAIT_MS) {
            return false;
        }
        if (pauseMs > 0) {
            stage = R.string.stage_waiting;
            step = 0;
            changed();
            Clock.system().sleep(pauseMs);
        }
        return true;
    }

    @Override
    public void disclose(Disclosure disclosure) {
        told = disclosure;
        changed();
    }

    @Override
    public void on(Event event) {
        stage = Stages.sentence(event);
        int begun = Stages.step(event);
        step = begun == 0 ? step : begun;
        synchronized (this) {
            isComputing = event.isComputing();
            if (!isComputing && conditions.isStopped()) {
                Thread.currentThread().interrupt(); // stopped while it computed, and about to wait
            }
        }
        changed();
    }

    private void changed() {
        main.post(() -> hearing.forEach(Runnable::run));
    }
}
