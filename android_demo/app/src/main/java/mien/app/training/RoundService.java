package mien.app.training;

import android.app.Notification;
import android.app.NotificationChannel;
import android.app.NotificationManager;
import android.app.PendingIntent;
import android.app.Service;
import android.content.Context;
import android.content.Intent;
import android.content.pm.ServiceInfo;
import android.os.IBinder;
import mien.app.Phone;
import mien.app.R;
import mien.app.Work;
import mien.client.MienException;

/**
 * Taking part at once, as the owner asked: while its notification is there Android lets the app work on, with another app in
 * front or the screen dark. The notification says what is done, and stops it.
 */
public final class RoundService extends Service {
    static final String STOP = "mien.app.STOP";
    static final String CHANNEL = "rounds";
    private static final int ID = 1;

    private Runnable unhear = () -> {};
    /** The newest start: Android ends an app whose service stops with a start on its way, so that no older one stops it. */
    private int newest;
    /** The start that began the round under way; 0 where none did. */
    private int began;

    /** Begins one round; to be called while a screen of the app is in front, for Android allows it then alone. */
    static void start(Context context) {
        context.startForegroundService(new Intent(context, RoundService.class));
    }

    @Override
    public int onStartCommand(Intent asked, int flags, int startId) {
        newest = startId;
        boolean isInFront = false;
        try {
            isInFront = comesToFront();
            Phone phone = Phone.of(this);
            Training training = phone.training;
            if (asked != null && STOP.equals(asked.getAction())) {
                training.stop();
            } else if (isInFront && training.startNow(this, () -> ended(phone, startId))) {
                began = startId;
                unhear.run();
                unhear = training.hear(() -> show(training));
            }
        } catch (MienException error) {
            // a home that cannot be opened now: the screen says why
        }
        if (began == 0 || !isInFront) {
            stopSelf(startId);
        }
        return START_NOT_STICKY;
    }

    /** Returns whether Android lets the service come to the front: not on Android 15 once its hours of the day are over, say. */
    private boolean comesToFront() {
        try {
            startForeground(ID, notification(R.string.stage_connecting), ServiceInfo.FOREGROUND_SERVICE_TYPE_DATA_SYNC);
            return true;
        } catch (IllegalStateException error) { // ForegroundServiceStartNotAllowedException, which Android 10 and 11 lack
            Phone phone = Phone.of(this);
            phone.work.run(() -> phone.device().note(Work.unforeseen(error)));
            return false;
        }
    }

    /** Android 15 gives such work six hours a day. */
    public void onTimeout(int startId, int type) {
        Phone.of(this).training.stop();
        stopSelf(newest);
    }

    /** Stops once the round that a start began is over, unless a later start began another before this was told. */
    private void ended(Phone phone, int startId) {
        TrainingJob.planNextUnlessTraining(this, phone);
        if (began == startId) {
            began = 0;
            stopSelf(newest);
        }
    }

    @Override
    public void onDestroy() {
        unhear.run();
        super.onDestroy();
    }

    @Override
    public IBinder onBind(Intent intent) {
        return null;
    }

    private void show(Training training) {
        if (training.isRunning()) {
            getSystemService(NotificationManager.class).notify(ID, notification(training.stage()));
        }
    }

    private Notification notification(int stage) {
        NotificationChannel channel =
                new NotificationChannel(CHANNEL, getString(R.string.rounds_channel), NotificationManager.IMPORTANCE_LOW);
        getSystemService(NotificationManager.class).createNotificationChannel(channel);
        PendingIntent open =
                PendingIntent.getActivity(
                        this, 0, new Intent(this, TrainingActivity.class), PendingIntent.FLAG_IMMUTABLE);
        PendingIntent stop =
                PendingIntent.getService(
                        this, 0, new Intent(this, RoundService.class).setAction(STOP), PendingIntent.FLAG_IMMUTABLE);
        return new Notification.Builder(this, CHANNEL)
                .setSmallIcon(R.drawable.icon_wait)
                .setContentTitle(getString(R.string.training_runs))
                .setContentText(getString(stage))
                .setContentIntent(open)
                .addAction(new Notification.Action.Builder(null, getString(R.string.training_stop), stop).build())
                .setOnlyAlertOnce(true)
                .setOngoing(true)
                .build();
    }
}
