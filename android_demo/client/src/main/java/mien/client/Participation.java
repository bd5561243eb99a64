package mien.client;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import mien.client.rounds.Event;
import mien.client.rounds.Listener;
import mien.client.rounds.Outcome;
import mien.client.tasks.Disclosure;

/**
 * One try at a round, to be run once on a thread of the app's choice, and stopped from any other. It ends with an {@link
 * Outcome} or with the error of {@link Device#participate}; being stopped is an outcome, NOT_NOW or NOT_COUNTED, and no lost
 * network, which is the error UNREACHABLE. What was trained until then is kept, and the next try goes on with it.
 */
public final class Participation implements Runnable {
    /** What a try is said to lack that was cancelled. */
    public static final String CANCELLED = "cancelled";

    /** What is done once, given what may end it and who hears of it. */
    interface Round {
        Outcome run(Participation cancelling);
    }

    private final Round round;
    private final CompletableFuture<Outcome> outcome = new CompletableFuture<>();
    private boolean hasBegun;
    private boolean cancelled;
    private boolean isComputing;
    private Thread thread;

    Participation(Round round) {
        this.round = round;
    }

    /** Returns how it ends, once it does; cancelling what is returned here stops nothing. */
    public CompletableFuture<Outcome> outcome() {
        return outcome.thenApply(ended -> ended);
    }

    /**
     * Stops as soon as a step can be left: at once while it waits for others, after a step of training else. The coordinator
     * is told first that it left, where others wait for it; cancelling again ends that.
     */
    public synchronized void cancel() {
        boolean isAgain = cancelled;
        cancelled = true;
        if (thread != null && (isAgain || !isComputing)) {
            thread.interrupt();
        }
    }

    /**
     * Takes part, on this thread; an error goes to {@link #outcome}, and to nobody else but where it is the machine's own
     * (an {@link Error}). Throws CONFIG the second time: how that ended nobody would hear.
     */
    @Override
    public void run() {
        synchronized (this) {
            if (hasBegun) {
                throw new MienException(ErrorCode.CONFIG, "this try was made already; ask the device for another participation");
            }
            hasBegun = true;
            thread = Thread.currentThread();
        }
        Outcome ended = null;
        Throwable failed = null;
        try {
            ended = isCancelled() ? Outcome.notNow(CANCELLED) : round.run(this);
        } catch (RuntimeException error) {
            failed = error;
        } catch (Error error) { // memory that ended, or code that was shrunk away: whoever waits would wait for good
            outcome.completeExceptionally(error);
            throw error;
        } finally {
            synchronized (this) {
                thread = null;
                if (cancelled) {
                    Thread.interrupted(); // it was meant for this try, and not for what the thread does next
                }
            }
        }
        if (failed == null) {
            outcome.complete(ended);
        } else {
            outcome.completeExceptionally(failed);
        }
    }

    synchronized boolean isCancelled() {
        return cancelled;
    }

    /** Returns what is unmet, and that this was cancelled where nothing else is. */
    List<String> withOwn(List<String> unmet) {
        return unmet.isEmpty() && isCancelled() ? Collections.singletonList(CANCELLED) : new ArrayList<>(unmet);
    }

    Listener watching(Listener told) {
        return new Listener() {
            @Override
            public void disclose(Disclosure disclosure) {
                told.disclose(disclosure);
            }

            @Override
            public void on(Event event) {
                synchronized (Participation.this) {
                    isComputing = event.isComputing();
                    if (cancelled && !isComputing) {
                        Thread.currentThread().interrupt(); // cancelled while it computed, and about to wait
                    }
                }
                told.on(event);
            }
        };
    }
}
