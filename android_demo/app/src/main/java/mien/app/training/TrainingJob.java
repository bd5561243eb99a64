package mien.app.training;

import android.app.job.JobInfo;
import android.app.job.JobParameters;
import android.app.job.JobScheduler;
import android.app.job.JobService;
import android.content.ComponentName;
import android.content.Context;
import android.os.Handler;
import android.os.Looper;
import mien.app.Phone;
import mien.client.MienException;

/**
 * Training by night: Android starts it when the phone charges, lies idle and has a network that costs nothing, and stops
 * it when one of these ends.
 */
public final class TrainingJob extends JobService {
    private static final int ID = 1;
    /** Of the job that runs once, at the time that the coordinator named. */
    static final int NEXT_ID = 2;
    private static final long EVERY_MS = 60 * 60_000;
    /** The shortest pause between two starts. */
    private static final long SOON_MS = 60_000;

    /** Plans training, or takes it off the plan; a plan outlives restarts of the phone. */
    public static void plan(Context context, boolean wanted) {
        JobScheduler scheduler = context.getSystemService(JobScheduler.class);
        if (!wanted) {
            scheduler.cancel(ID);
            scheduler.cancel(NEXT_ID);
        } else if (scheduler.getPendingJob(ID) == null) {
            scheduler.schedule(job(context, ID).setPeriodic(EVERY_MS).build());
        }
    }

    /**
     * Plans one start at the time that the coordinator named, or soon where that is past, where it comes before the next
     * hourly one is sure to: rounds begin when the coordinator says, Android moves a period's start within the period, and
     * whoever was stopped after its ten minutes goes on where it was while the round still waits.
     */
    static void planNext(Context context, long atUnixMs, long nowUnixMs) {
        long waitMs = Math.max(SOON_MS, atUnixMs - nowUnixMs);
        if (isPlanned(context) && waitMs < 2 * EVERY_MS) {
            context.getSystemService(JobScheduler.class)
                    .schedule(job(context, NEXT_ID).setMinimumLatency(waitMs).build());
        }
    }

    /**
     * Plans the next start, unless a round is under way, whose end does it: Android stops a running job that is scheduled
     * anew, and one that started meanwhile would find the round still there.
     */
    static void planNextUnlessTraining(Context context, Phone phone) {
        if (!phone.training.isRunning()) {
            planNext(context, phone.choices.nextTryMs(), System.currentTimeMillis());
        }
    }

    private static JobInfo.Builder job(Context context, int id) {
        return new JobInfo.Builder(id, new ComponentName(context, TrainingJob.class))
                .setRequiresCharging(true)
                .setRequiresDeviceIdle(true)
                .setRequiredNetworkType(JobInfo.NETWORK_TYPE_UNMETERED)
                .setPersisted(true);
    }

    /** Returns whether training is planned. */
    static boolean isPlanned(Context context) {
        return context.getSystemService(JobScheduler.class).getPendingJob(ID) != null;
    }

    @Override
    public boolean onStartJob(JobParameters parameters) {
        try {
            Phone phone = Phone.of(this);
            boolean starts = phone.training.startByNight(this, () -> end(phone, parameters));
            if (!starts) {
                planNextUnlessTraining(this, phone);
            }
            return starts;
        } catch (MienException error) {
            return false; // a home that cannot be opened now may be in an hour; no error of a job's ends the app
        }
    }

    private void end(Phone phone, JobParameters parameters) {
        // Not to be planned anew as it is: the period does that, and a job that waits for idleness may not back off.
        jobFinished(parameters, false);
        // Android hears it from this thread's queue: until then the job runs, and planning it would have it stopped.
        new Handler(Looper.getMainLooper()).post(() -> planNextUnlessTraining(this, phone));
    }

    @Override
    public boolean onStopJob(JobParameters parameters) {
        Phone phone = Phone.of(this);
        phone.training.stop();
        planNext(this, phone.choices.nextTryMs(), System.currentTimeMillis()); // now, for the process may not live long
        return false;
    }
}
