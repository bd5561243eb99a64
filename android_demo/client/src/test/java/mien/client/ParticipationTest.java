package mien.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertTrue;

import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import mien.client.rounds.Conditions;
import mien.client.rounds.Event;
import mien.client.rounds.Journal;
import mien.client.rounds.Listener;
import mien.client.rounds.Outcome;
import mien.client.secagg.Profile;
import mien.client.tasks.Agreement;
import mien.client.tasks.Disclosure;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** A try at a round that an app begins, waits for, and stops when it likes. */
public class ParticipationTest {
    private static final Agreement AGREED = new Agreement(3, EnumSet.allOf(Profile.class));
    private static final long A_DAY_MS = 24L * 60 * 60 * 1000;

    @Rule public final TemporaryFolder temporary = new TemporaryFolder();

    private final ExecutorService beside = Executors.newSingleThreadExecutor();
    private Device device;

    @Before
    public void open() {
        device = Device.at(temporary.getRoot().toPath()).keysInFiles().open();
    }

    @After
    public void close() {
        device.close();
        beside.shutdownNow();
    }

    private static final class Deaf implements Listener {
        @Override
        public void disclose(Disclosure disclosure) {}

        @Override
        public void on(Event event) {}
    }

    /** Waits as Clock.system() does, which is not there for tests on recovered code (tools/dex_roundtrip). */
    private static void sleepADay() {
        try {
            Thread.sleep(A_DAY_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw MienException.cancelled(error);
        }
    }

    /** Returns a round whose conditions wait, as a call of the network would, the first time that they are asked. */
    private Participation waiting(CountDownLatch waits) {
        AtomicInteger numAsked = new AtomicInteger();
        Conditions conditions =
                () -> {
                    if (numAsked.getAndIncrement() == 0) {
                        waits.countDown();
                        sleepADay();
                    }
                    return Collections.emptyList();
                };
        return device.participation(AGREED, conditions, new Deaf());
    }

    /** What is done in a round, which hears of events and may be cancelled meanwhile. */
    private interface Steps {
        void run(Participation round, Listener listener);
    }

    /** Does the steps of a round on this thread, which is interrupted no longer than that takes. */
    private static void inARound(Steps steps) {
        Participation round =
                new Participation(
                        own -> {
                            steps.run(own, own.watching(new Deaf()));
                            return Outcome.notNow(Participation.CANCELLED);
                        });
        round.run();
        assertFalse(Thread.interrupted());
    }

    private static boolean isInterrupted() {
        return Thread.currentThread().isInterrupted();
    }

    @Test
    public void whatIsCancelledWhileItWaitsEndsAndIsNoLostNetwork() throws InterruptedException, ExecutionException {
        CountDownLatch waits = new CountDownLatch(1);
        Participation round = waiting(waits);
        beside.execute(round);
        waits.await();
        assertFalse(round.outcome().isDone());
        round.outcome().cancel(true); // a future of the app's own: stops nothing
        assertFalse(round.outcome().isDone());
        round.cancel();
        Outcome outcome = round.outcome().get();
        assertEquals(Outcome.Kind.NOT_NOW, outcome.kind);
        assertEquals(Participation.CANCELLED, outcome.reason);
        Journal.Entry entry = device.status().journal.get(0);
        assertEquals(Outcome.Kind.NOT_NOW, entry.kind);
        assertFalse("the thread does other things now", beside.submit(Thread::interrupted).get());
    }

    @Test
    public void whatIsCancelledBeforeItBeginsNeverDoes() {
        Participation round = device.participation(AGREED, () -> Collections.singletonList("charging"), new Deaf());
        round.cancel();
        round.run();
        assertEquals(Participation.CANCELLED, round.outcome().join().reason);
        assertTrue(device.status().journal.isEmpty());
    }

    @Test
    public void whatIsUnmetIsSaidInItsOwnWords() {
        Participation round = device.participation(AGREED, () -> Collections.singletonList("charging"), new Deaf());
        round.run();
        assertEquals("charging", round.outcome().join().reason);
    }

    @Test
    public void anErrorIsTheFuturesAlone() {
        Participation round = device.participation(AGREED, Collections::emptyList, new Deaf());
        round.run();
        try {
            round.outcome().join();
        } catch (CompletionException error) {
            assertSame("it has not joined", ErrorCode.INVITE, ((MienException) error.getCause()).code());
            return;
        }
        throw new AssertionError("a device that belongs to no fleet took part");
    }

    @Test
    public void aThreadThatComputesIsNotInterrupted() {
        for (Event computing : new Event[] {Event.TRAINING, Event.SUMMING, Event.MEASURING, Event.MEASURED}) {
            interruptsOnlyAfter(computing);
        }
    }

    private static void interruptsOnlyAfter(Event computing) {
        inARound(
                (round, listener) -> {
                    listener.on(computing);
                    round.cancel();
                    assertFalse(computing + ": it asks itself", isInterrupted());
                    List<String> unmet = round.withOwn(Collections.emptyList());
                    assertEquals(Collections.singletonList(Participation.CANCELLED), unmet);
                    listener.on(Event.REPORTED);
                    round.cancel();
                    assertTrue(isInterrupted());
                });
    }

    @Test
    public void whatIsCancelledWhileItComputesStopsWhereItWouldWait() {
        inARound(
                (round, listener) -> {
                    listener.on(Event.TRAINED);
                    round.cancel();
                    listener.on(Event.REPORTED);
                    assertTrue("nobody asks it again until the next stage", isInterrupted());
                });
    }

    @Test
    public void whoCancelsAgainWaitsForNoNetworkThatIsToHearOfIt() {
        inARound(
                (round, listener) -> {
                    listener.on(Event.TRAINING);
                    round.cancel();
                    round.cancel(); // training was left, and the coordinator, which is away, is being told
                    assertTrue("no event says that training was left", isInterrupted());
                });
    }

    @Test
    public void whatIsCancelledOnceItIsKeptWaitsForNoNetwork() {
        inARound(
                (round, listener) -> {
                    listener.on(Event.TRAINED);
                    listener.on(Event.KEPT);
                    assertFalse(isInterrupted());
                    round.cancel();
                    assertTrue("it may be trying to reach the coordinator", isInterrupted());
                });
    }

    @Test
    public void whoeverWaitsHearsOfWhatNobodyForesaw() {
        Participation round =
                new Participation(
                        own -> {
                            throw new NoClassDefFoundError("shrunk away");
                        });
        try {
            round.run();
            throw new AssertionError("hidden from the thread");
        } catch (NoClassDefFoundError error) {
            assertTrue(round.outcome().isCompletedExceptionally());
        }
    }

    @Test
    public void itRunsOnce() {
        AtomicInteger numRounds = new AtomicInteger();
        Participation round = new Participation(own -> Outcome.notNow("time " + numRounds.incrementAndGet()));
        round.run();
        Raised.by(ErrorCode.CONFIG, "a second time", round::run);
        assertEquals("time 1", round.outcome().join().reason);
        assertEquals(1, numRounds.get());
    }

    @Test
    public void aHomeNeedsKeys() {
        Raised.by(ErrorCode.CONFIG, "keysInFiles", () -> Device.at(temporary.getRoot().toPath()).open());
        Raised.by(ErrorCode.IN_USE, "another program", () -> Device.at(temporary.getRoot().toPath()).keysInFiles().open());
    }
}
