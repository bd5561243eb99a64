package mien.app.training;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.app.ForegroundServiceStartNotAllowedException;
import android.app.KeyguardManager;
import android.app.job.JobInfo;
import android.app.job.JobScheduler;
import android.content.Context;
import android.content.Intent;
import android.net.ConnectivityManager;
import android.net.NetworkCapabilities;
import android.os.BatteryManager;
import android.os.Looper;
import android.os.PowerManager;
import android.view.View;
import android.view.ViewGroup;
import android.widget.ProgressBar;
import android.widget.Switch;
import android.widget.TextView;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.GeneralSecurityException;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import mien.app.Limit;
import mien.app.MainActivity;
import mien.app.R;
import mien.app.ScreenRunner;
import mien.client.ErrorCode;
import mien.client.Inside;
import mien.client.MienException;
import mien.client.Vectors;
import mien.client.model.ModelSpec;
import mien.client.rounds.Event;
import mien.client.rounds.Journal;
import mien.client.rounds.Outcome;
import mien.client.rounds.Outcomes;
import mien.client.tasks.Agreement;
import mien.client.tasks.ContributionLayout;
import mien.client.tasks.Disclosure;
import mien.client.tasks.TaskSpec;
import mien.client.wire.Bytes;
import mien.client.wire.Json;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.android.controller.ServiceController;
import org.robolectric.annotation.Config;
import org.robolectric.shadows.ShadowLooper;
import org.robolectric.shadows.ShadowNetworkCapabilities;
import org.robolectric.shadows.ShadowService;
import org.robolectric.shadows.ShadowSystemClock;

/** Taking part: what a phone waits for, what it did, what is planned for the night. */
public class TrainingTest extends ScreenRunner {
    private static final long NOON_MS = 1_790_000_000_000L;

    @Test
    public void conditionsAreEachMetOrNot() {
        PhoneConditions night = PhoneConditions.byNight(context());
        at(true, true, false);
        assertEquals(Collections.emptyList(), night.unmet());
        at(false, false, true);
        assertEquals(Arrays.asList("charging", "unmetered", "idle"), night.unmet());
        assertEquals("its owner may look and hold it", Collections.singletonList("unmetered"), PhoneConditions.now(context()).unmet());
        at(true, true, false);
        night.stop();
        assertEquals(Collections.singletonList("stopped"), night.unmet());
    }

    @Test
    public void whoHasNotJoinedHasNothingToTakePartIn() throws IOException {
        Activity screen = opened();
        assertEquals(screen.getString(R.string.training_not_joined), text(screen, R.id.training_state));
        assertFalse(isShown(screen, R.id.training_now));
        assertFalse(screen.findViewById(R.id.training_switch).isEnabled());
        draw(screen, "training-not-joined");
    }

    @Test
    public void aPhoneThatTrainsSaysWhatItDid() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(true, false, true);
        Journal journal = Inside.journal(device());
        journal.note(Outcomes.refused("config", "task 'all' lets the coordinator see sums over 4 devices, less than 16"), NOON_MS);
        journal.note(Outcomes.counted(24), NOON_MS + 3_600_000);
        journal.count(4_300_000, 4_800_000);
        Activity screen = opened();
        assertEquals(screen.getString(R.string.training_waits), text(screen, R.id.training_state));
        assertTrue(text(screen, R.id.training_text), text(screen, R.id.training_text).contains("the numbers of 24 phones"));
        assertEquals("Met", rowText(screen, R.id.training_facts, 0));
        assertEquals(screen.getString(R.string.unmetered_no), rowText(screen, R.id.training_facts, 1));
        drawWhole(screen, "training");
        ((ViewGroup) screen.findViewById(R.id.training_ways)).getChildAt(0).performClick();
        String opened = Shadows.shadowOf(screen).getNextStartedActivity().getComponent().getClassName();
        assertEquals(HistoryActivity.class.getName(), opened);
        Activity past = history();
        assertEquals("4.30 MB", rowText(past, R.id.training_sent, 0));
        assertTrue("the newest first", rowTitle(past, R.id.training_past, 0).startsWith("Took part"));
        String why = rowText(past, R.id.training_past, 1);
        assertTrue(why, why.contains("more than you agreed to") && !why.contains("less than 16"));
        assertFalse("the program's words are for whoever asks", isShown(past, R.id.training_words));
        draw(past, "training-history");
        past.findViewById(R.id.training_words_show).performClick();
        assertTrue(isShown(past, R.id.training_words));
        assertTrue(text(past, R.id.training_words).contains("less than 16"));
        drawWhole(past, "training-history-words");
    }

    @Test
    @Config(qualifiers = GERMAN)
    public void aPhoneThatDidNothingYetSaysSo() throws IOException {
        Activity past = history();
        assertTrue(isShown(past, R.id.training_nothing));
        assertFalse(isShown(past, R.id.training_diagnostics));
        draw(past, "training-history-empty-de");
    }

    @Test
    public void roundsThatNobodyAnsweredAreTriedAgainByThemselves() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        Inside.journal(device()).note(Outcomes.refused("unreachable", "no answer"), NOON_MS);
        Inside.journal(device()).note(Outcomes.refused("rate_limited", "later"), NOON_MS + 1);
        Activity past = history();
        for (int row = 0; row < 2; row++) {
            String why = rowText(past, R.id.training_past, row);
            assertTrue(why, why.endsWith("by itself."));
        }
    }

    private static Activity history() {
        Activity screen = Robolectric.buildActivity(HistoryActivity.class).setup().get();
        await("it is read", () -> ((ViewGroup) screen.findViewById(R.id.training_sent)).getChildCount() > 0);
        return screen;
    }

    @Test
    public void aRoundUnderWayShowsItsStep() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(true, true, false);
        Disclosure told = disclosure("\"min_reports\"");
        // Not before a time that is near enough to be waited for: until then the round's thread says nothing more.
        phone().choices.tryAgainAt(System.currentTimeMillis() + 290_000);
        assertTrue(phone().training.startNow(context(), () -> {}));
        await("it waits", () -> phone().training.stage() == R.string.stage_waiting);
        for (Event event : new Event[] {Event.FETCHING, Event.TRAINING, Event.TRAINED, Event.UNCOSIGNED}) {
            phone().training.on(event);
        }
        assertEquals("what belongs to no step leaves the one before", 3, phone().training.step());
        phone().training.on(Event.KEYS);
        phone().training.disclose(told);
        Activity screen = opened();
        assertEquals(screen.getString(R.string.training_runs), text(screen, R.id.training_state));
        assertEquals("Step 3 of 5", text(screen, R.id.training_step));
        assertEquals(3, ((ProgressBar) screen.findViewById(R.id.training_progress)).getProgress());
        assertEquals(screen.getString(R.string.stage_keys), text(screen, R.id.training_text));
        String sends = text(screen, R.id.training_told);
        assertTrue(sends, sends.contains(told.numNumbers + " masked numbers, seen only in a sum over " + told.fewest));
        assertFalse("nothing is waited for meanwhile", isShown(screen, R.id.training_waiting));
        draw(screen, "training-round");
        assertFalse(sends, sends.contains("labelled faces"));
        Disclosure labelled = disclosure("\"must_include\"");
        phone().training.disclose(labelled);
        String besides = text(opened(), R.id.training_told);
        assertTrue(besides, besides.contains("includes 1 or more devices with labelled faces"));
        assertTrue(besides, besides.contains("the others hide among " + (labelled.fewest - 1) + "."));
        phone().training.stopAndWait();
    }

    @Test
    public void whatWasStoppedWhileItComputedDoesNotWait() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(true, true, false);
        phone().choices.tryAgainAt(System.currentTimeMillis() + 290_000); // so that the round's own thread says nothing more
        assertTrue(phone().training.startNow(context(), () -> {}));
        await("it waits", () -> phone().training.stage() == R.string.stage_waiting);
        phone().training.on(Event.TRAINED);
        phone().training.stop();
        assertTrue("it asks itself whether it may go on", phone().training.isRunning());
        phone().training.on(Event.KEPT);
        assertTrue("nobody asks it before it waits for the network", Thread.interrupted());
        phone().training.stop();
        await("who stops it again waits for nothing", () -> !phone().training.isRunning());
    }

    /** Returns what leaves a phone for the first task of the golden vectors that has a field. */
    private static Disclosure disclosure(String field) throws IOException {
        Vectors tasks = golden("tasks.json").at("tasks");
        Vectors layouts = golden("layouts.json");
        ModelSpec spec = ModelSpec.parse(Bytes.utf8(layouts.at("spec_json").text()));
        ContributionLayout layout = new ContributionLayout(spec.layout.part(Collections.singletonList("mix.*")));
        int number = 0;
        while (!tasks.at(number).at("json").text().contains(field)) {
            number++;
        }
        return new Disclosure(new TaskSpec(Bytes.utf8(tasks.at(number).at("json").text())), layout, 4, 1);
    }

    private static Vectors golden(String name) throws IOException {
        Path file = Paths.get(System.getProperty("mien.root"), "tests/golden/client", name);
        return Vectors.of(Json.parse(Files.readAllBytes(file), name));
    }

    @Test
    public void howManySumsThePicturesMayGoIntoFollowsTheOwner() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        Path sums = Files.createDirectories(context().getNoBackupFilesDir().toPath().resolve("mien/sums"));
        Files.write(sums.resolve("sum-of-a-task"), new byte[] {'?'});
        String one = rowText(history(), R.id.training_sent, 2);
        assertTrue(one, one.contains("of at most 24. Over one model the same pictures go into at most: 1 sum."));
        phone().choices.demand(Limit.PER_MODEL, 4);
        phone().choices.demand(Limit.PER_DAY, 96);
        String more = rowText(history(), R.id.training_sent, 2);
        assertTrue(more, more.contains("of at most 96. Over one model the same pictures go into at most: 4 sums."));
    }

    @Test
    public void aLieIsShownAndItsEvidenceHandedOn() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        Journal journal = Inside.journal(device());
        journal.note(Outcomes.refused("transparency", "another log than before; nothing was trained"), NOON_MS);
        journal.note(Outcomes.enough(), NOON_MS + 3_600_000);
        Outcomes.lie(Inside.logFiles(device()), "the coordinator shows another log than before");
        Activity screen = opened();
        assertEquals("The coordinator lied", rowTitle(screen, R.id.training_lie, 0));
        Activity past = history();
        assertEquals("In enough sums for now", rowTitle(past, R.id.training_past, 0));
        String enough = rowText(past, R.id.training_past, 0);
        assertTrue(enough, enough.contains("waits for the next model"));
        String why = rowText(past, R.id.training_past, 1);
        assertTrue(why, why.contains("Nothing was trained"));
        assertTrue(text(past, R.id.training_words).contains("another log than before"));
        drawWhole(screen, "training-lie");
        ((ViewGroup) screen.findViewById(R.id.training_lie)).getChildAt(0).performClick();
        Intent[] started = new Intent[1];
        await("it asks by what", () -> (started[0] = Shadows.shadowOf(screen).getNextStartedActivity()) != null);
        Intent given = started[0].getParcelableExtra(Intent.EXTRA_INTENT);
        assertEquals(Intent.ACTION_SEND, given.getAction());
        assertTrue(given.getStringExtra(Intent.EXTRA_TEXT).contains("the coordinator shows another log than before"));
    }

    @Test
    @Config(qualifiers = GERMAN_NIGHT, fontScale = 1.5f)
    public void itIsPausedAndResumed() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        Activity screen = opened();
        Switch takesPart = screen.findViewById(R.id.training_switch);
        settle();
        assertNotNull(planned());
        takesPart.performClick();
        await("it is paused", () -> text(screen, R.id.training_state).equals("Angehalten"));
        assertNull("nothing is planned while it is paused", planned());
        drawWhole(screen, "training-paused-de-night-large");
        takesPart.performClick();
        await("it is resumed", () -> planned() != null);
        assertFalse(phone().choices.paused());
    }

    @Test
    public void theOwnersNoHoldsWhoeverAgrees() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        phone().choices.agree(true, false);
        settle();
        assertFalse("nobody else says yes", phone().choices.trains());
        assertNull("nothing is planned", planned());
        at(true, true, false);
        assertFalse("a plan of before does not help", Robolectric.buildService(TrainingJob.class).create().get().onStartJob(null));
        Activity screen = opened();
        assertEquals("Switched off", text(screen, R.id.training_state));
        assertFalse(isShown(screen, R.id.training_now));
        assertFalse(((Switch) screen.findViewById(R.id.training_switch)).isChecked());
        drawWhole(screen, "training-off");
        Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
        await("home says so, too", () -> text(home, R.id.next_text).equals(home.getString(R.string.next_off)));
    }

    @Test
    public void onlyTheOwnerSwitchesItOnAndAnybodyOff() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        phone().choices.agree(true, false);
        lock();
        ActivityController<TrainingActivity> controller = Robolectric.buildActivity(TrainingActivity.class).setup();
        TrainingActivity screen = controller.get();
        await("the state is shown", () -> text(screen, R.id.training_state).equals("Switched off"));
        Switch takesPart = screen.findViewById(R.id.training_switch);
        takesPart.performClick();
        Intent asked = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        assertEquals("android.app.action.CONFIRM_DEVICE_CREDENTIAL", asked.getAction());
        assertFalse("not before the answer", takesPart.isChecked());
        Shadows.shadowOf(screen).receiveResult(asked, Activity.RESULT_CANCELED, null);
        assertFalse(phone().choices.letsTrain());
        takesPart.performClick();
        asked = Shadows.shadowOf(screen).getNextStartedActivityForResult().intent;
        Shadows.shadowOf(screen).receiveResult(asked, Activity.RESULT_OK, null);
        await("it is planned", () -> planned() != null);
        await("and shown", takesPart::isChecked);
        ShadowSystemClock.advanceBy(Duration.ofHours(1));
        takesPart.performClick();
        assertNull("to stop asks nobody", Shadows.shadowOf(screen).getNextStartedActivityForResult());
        await("it is off", () -> planned() == null);
        assertTrue("what the owner agreed to stays", phone().choices.trains());
        takesPart.performClick();
        assertNotNull("to go on asks again", Shadows.shadowOf(screen).getNextStartedActivityForResult());
    }

    @Test
    public void theNightIsPlannedOnceSomebodyAgreed() throws IOException, GeneralSecurityException {
        settle();
        assertNull("nobody agreed", planned());
        int ada = joinAndEnrol();
        settle();
        JobInfo job = planned();
        assertTrue(job.isRequireCharging() && job.isRequireDeviceIdle() && job.isPersisted() && job.isPeriodic());
        assertTrue(job.getRequiredNetwork().hasCapability(NetworkCapabilities.NET_CAPABILITY_NOT_METERED));
        device().setConsent(ada, false);
        settle();
        assertNull("agreement was withdrawn", planned());
    }

    @Test
    public void aJobThatFindsItsConditionsGoneEndsAndNotesWhy() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(false, true, true);
        TrainingJob job = Robolectric.buildService(TrainingJob.class).create().get();
        assertTrue("it works beside the main thread", job.onStartJob(null));
        await("it ends", () -> Shadows.shadowOf(job).getIsJobFinished());
        assertFalse(phone().training.isRunning());
        Journal.Entry entry = Inside.journal(device()).entries().get(0);
        assertEquals(Outcome.Kind.NOT_NOW, entry.kind);
        assertEquals("charging, idle", entry.reason);
        assertTrue(rowText(history(), R.id.training_past, 0).endsWith("Not on the charger.\nIn use."));
    }

    @Test
    public void stoppingEndsARoundThatCannotReachAnybody() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(true, true, false);
        Activity screen = opened();
        assertTrue(isShown(screen, R.id.training_now));
        screen.findViewById(R.id.training_now).performClick();
        Intent began = Shadows.shadowOf(RuntimeEnvironment.getApplication()).getNextStartedService();
        ServiceController<RoundService> service = Robolectric.buildService(RoundService.class, began).create().startCommand(0, 1);
        ShadowService shown = Shadows.shadowOf(service.get());
        assertNotNull("Android lets it go on behind other apps", shown.getLastForegroundNotification());
        assertEquals(RoundService.CHANNEL, shown.getLastForegroundNotification().getChannelId());
        assertEquals(1, shown.getLastForegroundNotification().actions.length);
        await("it runs", () -> text(screen, R.id.training_state).equals(screen.getString(R.string.training_runs)));
        assertEquals(screen.getString(R.string.training_stop), text(screen, R.id.training_now));
        draw(screen, "training-runs");
        service.withIntent(new Intent().setAction(RoundService.STOP)).startCommand(0, 2);
        await("the notification stops it", () -> !phone().training.isRunning());
        await("and goes with it", shown::isStoppedBySelf);
        await("that is shown", () -> text(screen, R.id.training_state).equals(screen.getString(R.string.training_waits)));
    }

    @Test
    public void theTermsOfTheAgreementAreTheOwners() {
        assertEquals(new Agreement().minCohort, phone().choices.agreement().minCohort);
        phone().choices.demand(Limit.FEWEST, 64);
        assertEquals(64, phone().choices.agreement().minCohort);
    }

    private static int joinAndEnrol() throws IOException, GeneralSecurityException {
        join();
        phone().choices.agree(true, true);
        byte[][] crops = new byte[4][112 * 112 * 3];
        return Inside.gallery(device()).enrol("Ada", crops, new float[] {1, 0}, "model", NOON_MS, true);
    }

    private static Activity opened() {
        Activity screen = Robolectric.buildActivity(TrainingActivity.class).setup().get();
        await("the state is shown", () -> !text(screen, R.id.training_state).isEmpty());
        return screen;
    }

    @Test
    public void theNightBeginsWhenTheCoordinatorSaid() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        settle();
        at(true, true, false);
        long later = System.currentTimeMillis() + 50 * 60_000;
        phone().choices.tryAgainAt(later);
        TrainingJob job = Robolectric.buildService(TrainingJob.class).create().get();
        assertFalse("it is not asked before", job.onStartJob(null));
        JobScheduler scheduler = context().getSystemService(JobScheduler.class);
        assertNotNull("but then", scheduler.getPendingJob(TrainingJob.NEXT_ID));
        TrainingJob.planNext(context(), later, later - 90_000);
        JobInfo next = scheduler.getPendingJob(TrainingJob.NEXT_ID);
        assertEquals(90_000, next.getMinLatencyMillis());
        assertFalse(next.isPeriodic());
        assertTrue(next.isRequireCharging() && next.isRequireDeviceIdle());
        TrainingJob.planNext(context(), later, later + 3 * 60 * 60_000);
        next = scheduler.getPendingJob(TrainingJob.NEXT_ID);
        assertEquals("a time that is past is soon, and not at once", 60_000, next.getMinLatencyMillis());
        scheduler.cancel(TrainingJob.NEXT_ID);
        assertFalse(job.onStopJob(null));
        next = scheduler.getPendingJob(TrainingJob.NEXT_ID);
        assertNotNull("who is stopped goes on soon", next);
        TrainingJob.plan(context(), false);
        assertNull("whoever takes it back takes both back", scheduler.getPendingJob(TrainingJob.NEXT_ID));
        TrainingJob.planNext(context(), later, later - 90_000);
        assertNull(scheduler.getPendingJob(TrainingJob.NEXT_ID));
    }

    @Test
    public void nothingIsPlannedWhileANightsRoundIsUnderWay() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        settle();
        at(true, true, false);
        TrainingJob once = Robolectric.buildService(TrainingJob.class).create().get();
        synchronized (Inside.journal(device())) { // which every try at a round writes to: none ends meanwhile
            assertTrue(once.onStartJob(null));
            assertFalse("one trains", Robolectric.buildService(TrainingJob.class).create().get().onStartJob(null));
            assertNull("Android would stop the job that trains, and start it each minute", next());
        }
        phone().training.stopAndWait();
        ShadowLooper main = Shadows.shadowOf(Looper.getMainLooper());
        while (!Shadows.shadowOf(once).getIsJobFinished()) {
            main.runOneTask();
        }
        assertNull("nor before it has said that it is finished", next());
        await("whoever trained plans at the end", () -> next() != null);
    }

    @Test
    public void theNightGoesOnAfterARoundOfTheOwners() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        settle();
        at(true, true, false);
        RoundService service;
        synchronized (Inside.journal(device())) { // which every try at a round writes to: none ends meanwhile
            service = taking(1).get();
            assertTrue(phone().training.isRunning());
            assertFalse(Robolectric.buildService(TrainingJob.class).create().get().onStartJob(null));
            assertNull("it would start each minute, and find the owner's round", next());
        }
        phone().training.stop();
        await("the owner's round ends", () -> Shadows.shadowOf(service).isStoppedBySelf());
        assertNotNull(next());
    }

    @Test
    public void aTapWhileARoundEndsBeginsAnother() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(true, true, false);
        ServiceController<RoundService> service = taking(1);
        ShadowService shown = Shadows.shadowOf(service.get());
        phone().training.stopAndWait();
        Shadows.shadowOf(Looper.getMainLooper()).idle();
        assertEquals("a second start may be on its way, and Android keeps the service for it", 1, shown.getStopSelfId());
        service.startCommand(0, 2);
        phone().training.stopAndWait(); // what says so on the main thread comes after the third
        synchronized (Inside.journal(device())) { // which every try at a round writes to: none ends meanwhile
            service.startCommand(0, 3);
            Shadows.shadowOf(Looper.getMainLooper()).idle();
            assertTrue(phone().training.isRunning());
            assertEquals("the third goes on", 1, shown.getStopSelfId());
        }
        service.withIntent(new Intent().setAction(RoundService.STOP)).startCommand(0, 4);
        await("the newest start is the last", () -> shown.getStopSelfId() == 4);
        service.withIntent(new Intent()).startCommand(0, 5);
        service.get().onTimeout(5, 0);
        assertEquals(5, shown.getStopSelfId());
    }

    @Test
    public void whoAsksForARoundWaitsForTheTimeThatTheCoordinatorNamed() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(true, true, false);
        boolean[] ended = new boolean[1];
        phone().choices.tryAgainAt(System.currentTimeMillis() + 50 * 60_000);
        assertTrue(phone().training.startNow(context(), () -> ended[0] = true));
        await("so long nobody waits", () -> ended[0]);
        assertEquals("and nothing was asked", Collections.emptyList(), Inside.journal(device()).entries());
        ended[0] = false;
        long near = System.currentTimeMillis() + 4 * 60_000;
        phone().choices.tryAgainAt(near);
        assertTrue(phone().training.startNow(context(), () -> ended[0] = true));
        await("a near one is waited for", () -> phone().training.stage() == R.string.stage_waiting);
        assertEquals(Collections.emptyList(), Inside.journal(device()).entries());
        phone().training.stop();
        await("it can be stopped", () -> ended[0]);
        assertEquals("and the time holds still", near, phone().choices.nextTryMs());
    }

    @Test
    public void nobodyHasAPhoneWaitForMoreThanADay() {
        phone().choices.tryAgainAt(Long.MAX_VALUE);
        long waitMs = phone().choices.nextTryMs() - System.currentTimeMillis();
        assertTrue("a coordinator that names a year", 0 < waitMs && waitMs <= Outcome.LONGEST_PAUSE_MS);
        // As it is found once a clock that was a year ahead is right again.
        context().getSharedPreferences("choices", Context.MODE_PRIVATE)
                .edit()
                .putLong("next_try_ms", System.currentTimeMillis() + 365 * Outcome.LONGEST_PAUSE_MS)
                .commit();
        assertEquals("a clock that was a year ahead", 0, phone().choices.nextTryMs());
    }

    @Test
    public void aTapThatFindsTheNightTrainingEndsItself() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(true, true, false);
        ServiceController<RoundService> service = taking(1);
        phone().training.stopAndWait();
        Shadows.shadowOf(Looper.getMainLooper()).idle();
        phone().choices.tryAgainAt(0);
        synchronized (Inside.journal(device())) { // which every try at a round writes to: none ends meanwhile
            assertTrue(Robolectric.buildService(TrainingJob.class).create().get().onStartJob(null));
            service.startCommand(0, 2);
            assertEquals("no round of its own is under way", 2, Shadows.shadowOf(service.get()).getStopSelfId());
            assertTrue(phone().training.isRunning());
        }
    }

    @Test
    public void aRoundThatAndroidLetsNotComeToTheFrontEndsNoApp() throws IOException, GeneralSecurityException {
        joinAndEnrol();
        at(true, true, false);
        ServiceController<RoundService> service = Robolectric.buildService(RoundService.class, new Intent()).create();
        ShadowService shown = Shadows.shadowOf(service.get());
        shown.setThrowInStartForeground(new ForegroundServiceStartNotAllowedException("Time limit already exhausted"));
        service.startCommand(0, 1);
        assertFalse(phone().training.isRunning());
        assertEquals(1, shown.getStopSelfId());
        await("it is noted", () -> !Inside.journal(device()).entries().isEmpty());
        Journal.Entry entry = Inside.journal(device()).entries().get(0);
        assertEquals(Outcome.Kind.FAILED, entry.kind);
        assertTrue(entry.reason, entry.reason.contains("ForegroundServiceStartNotAllowedException"));
    }

    @Test
    public void aScreenSaverOnTheChargerIsNoOwnerAtWork() {
        at(true, true, true);
        assertEquals(Collections.singletonList("idle"), PhoneConditions.byNight(context()).unmet());
        Shadows.shadowOf(context().getSystemService(KeyguardManager.class)).setKeyguardLocked(true);
        assertTrue(PhoneConditions.byNight(context()).unmet().isEmpty());
    }

    @Test
    public void whatNobodyForesawEndsNoApp() {
        MienException[] told = new MienException[1];
        phone().work.run(
                () -> {
                    throw new IllegalStateException("nobody foresaw it");
                },
                done -> {},
                error -> told[0] = error);
        await("it is told", () -> told[0] != null);
        assertEquals(ErrorCode.OTHER, told[0].code());
    }

    private static Context context() {
        return RuntimeEnvironment.getApplication();
    }

    private static JobInfo planned() {
        return context().getSystemService(JobScheduler.class).getPendingJob(1);
    }

    private static JobInfo next() {
        return context().getSystemService(JobScheduler.class).getPendingJob(TrainingJob.NEXT_ID);
    }

    /** Returns the service after a first start, with a round under way that reaches nobody. */
    private static ServiceController<RoundService> taking(int startId) {
        return Robolectric.buildService(RoundService.class, new Intent()).create().startCommand(0, startId);
    }

    private static String rowText(Activity screen, int column, int row) {
        return part(screen, column, row, R.id.row_text);
    }

    private static String rowTitle(Activity screen, int column, int row) {
        return part(screen, column, row, R.id.row_title);
    }

    private static String part(Activity screen, int column, int row, int id) {
        View shown = ((ViewGroup) screen.findViewById(column)).getChildAt(row);
        return ((TextView) shown.findViewById(id)).getText().toString();
    }

    /** Has Android tell how this phone lies there. */
    private static void at(boolean charging, boolean unmetered, boolean inUse) {
        Shadows.shadowOf(context().getSystemService(BatteryManager.class)).setIsCharging(charging);
        Shadows.shadowOf(context().getSystemService(PowerManager.class)).setIsInteractive(inUse);
        ConnectivityManager network = context().getSystemService(ConnectivityManager.class);
        NetworkCapabilities has = ShadowNetworkCapabilities.newInstance();
        if (unmetered) {
            Shadows.shadowOf(has).addCapability(NetworkCapabilities.NET_CAPABILITY_NOT_METERED);
        } else {
            Shadows.shadowOf(has).removeCapability(NetworkCapabilities.NET_CAPABILITY_NOT_METERED);
        }
        Shadows.shadowOf(network).setNetworkCapabilities(network.getActiveNetwork(), has);
    }
}
