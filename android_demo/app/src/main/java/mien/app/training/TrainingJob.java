package mien.app.training;

import android.app.job.JobInfo;
import android.app.job.JobParameters;
import android.app.job.JobScheduler;
import android.app.job.JobService;
import android.content.ComponentName;
import android.content.Context;
import mien.app.Phone;

/**
 * Training by night: Android starts it when the phone charges, lies idle and has a network that costs nothing, and stops
 * it when one of these ends.
 */
public final class TrainingJob extends JobService {
    private static final int ID = 1;
    private static final long EVERY_MS = 60 * 60_000;

    /** Plans training, or takes it off the plan; a plan outlives restarts of the phone. */
    public static void plan(Context context, boolean wanted) {
        JobScheduler scheduler = context.getSystemService(JobScheduler.class);
        if (!wanted) {
            scheduler.cancel(ID);
        } else if (scheduler.getPendingJob(ID) == null) {
            scheduler.schedule(
                    new JobInfo.Builder(ID, new ComponentName(context, TrainingJob.class))
                            .setRequiresCharging(true)
                            .setRequiresDeviceIdle(true)
                            .setRequiredNetworkType(JobInfo.NETWORK_TYPE_UNMETERED)
                            .setPeriodic(EVERY_MS)
                            .setPersisted(true)
                            .build());
        }
    }

    /** Returns whether training is planned. */
    static boolean isPlanned(Context context) {
        return context.getSystemService(JobScheduler.class).getPendingJob(ID) != null;
    }

    @Override
    public boolean onStartJob(JobParameters parameters) {
        // Not to be planned anew at its end: the period does that, and a job that waits for idleness may not back off.
        return Phone.of(this).training.startByNight(this, () -> jobFinished(parameters, false));
    }

    @Override
    public boolean onStopJob(JobParameters parameters) {
        Phone.of(this).training.stop();
        return false;
    }
}
