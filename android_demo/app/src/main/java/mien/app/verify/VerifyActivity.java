package mien.app.verify;

import android.app.KeyguardManager;
import android.content.Intent;
import android.content.pm.ActivityInfo;
import android.os.Bundle;
import android.os.Handler;
import android.os.Looper;
import android.os.SystemClock;
import android.widget.Button;
import android.widget.ImageView;
import android.widget.TextView;
import mien.app.Extras;
import mien.app.R;
import mien.app.Screen;
import mien.app.camera.Cameras;
import mien.app.camera.Faces;
import mien.app.camera.FrameSource;
import mien.app.camera.Guide;
import mien.app.camera.Looking;
import mien.app.camera.Viewfinder;
import mien.client.Device;
import mien.client.MienException;
import mien.client.enrol.Lockout;
import mien.client.enrol.VerifySession;
import mien.client.people.Decision;
import mien.client.people.Gallery;
import mien.client.vision.FaceReader;
import mien.client.vision.Yuv;
import mien.client.wire.Texts;

/**
 * Looks at a face and says whose it is, or that it is nobody's who is enrolled; with {@link Extras#PERSON}, whether it is
 * theirs. It never says how much. The phone's own lock is a way out at any time.
 */
public final class VerifyActivity extends Screen implements Viewfinder.Looker {
    private static final int ASKED_FOR_PIN = 5309;
    private static final long SECOND_MS = 1000;

    private final Handler clock = new Handler(Looper.getMainLooper());
    private Viewfinder viewfinder;
    private FaceReader reader;
    private final Looking<VerifySession.Step> looking = new Looking<>(this, this::take, this::fail);
    private volatile Decision decision;
    private long lockedUntilMs;
    private boolean isAnswered;

    @Override
    protected boolean showsFaces() {
        return true;
    }

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        setRequestedOrientation(ActivityInfo.SCREEN_ORIENTATION_LOCKED);
        showFilling(R.layout.verify, R.string.verify_title);
        FrameSource camera = Cameras.open(this, FrameSource.Facing.FRONT, Faces.LEAST_PIXELS);
        viewfinder = new Viewfinder(this, camera, Guide.face(this), R.string.verify_why, this);
        onClick(R.id.verify_pin, this::askForPin);
        prepare();
    }

    private void prepare() {
        say((CharSequence) null);
        hint(R.string.verify_preparing);
        setVisible(R.id.verify_hint, true);
        setVisible(R.id.verify_next, false);
        work(() -> Faces.prepare(getApplicationContext(), phone().device()), this::prepared, this::notPrepared);
    }

    private void prepared(FaceReader found) {
        reader = found;
        begin();
    }

    private void notPrepared(MienException error) {
        setVisible(R.id.verify_hint, false);
        next(R.string.camera_again, this::prepare);
        say(error);
    }

    // Looking

    /** Begins an attempt, or counts down to when one is allowed. */
    private void begin() {
        clock.removeCallbacksAndMessages(null);
        work(
                () -> {
                    Lockout lockout = phone().lockout();
                    long waitMs = lockout.waitMs();
                    return () -> beginAfter(lockout, waitMs);
                },
                Runnable::run);
    }

    private void beginAfter(Lockout lockout, long waitMs) {
        if (isAnswered) {
            return; // by the phone's own lock, meanwhile
        }
        if (waitMs > 0) {
            lockedUntilMs = SystemClock.elapsedRealtime() + waitMs;
            countDown();
            return;
        }
        looking.begin(new VerifySession(reader, this::isThem, lockout, null)::offer);
        setVisible(R.id.verify_answer, false);
        setVisible(R.id.verify_next, false);
        setVisible(R.id.verify_liveness, true);
        setVisible(R.id.camera_place, true);
        hint(R.string.look_straight);
        viewfinder.begin();
    }

    private boolean isThem(byte[] crop) {
        Device device = phone().device();
        decision = person() == 0 ? device.identify(crop) : device.verify(person(), crop);
        return decision.isMatch();
    }

    /** Returns who has to be recognised, 0 for anybody. */
    private int person() {
        return getIntent().getIntExtra(Extras.PERSON, 0);
    }

    @Override
    public void onFrame(Yuv picture, int rotationDeg) {
        looking.onFrame(picture, rotationDeg);
    }

    @Override
    public void onLooking(boolean isLooking, boolean hasTorch) {
        setVisible(R.id.verify_hint, isLooking);
    }

    private void take(VerifySession.Step step) {
        switch (step.state) {
            case YES:
                end();
                sayYes(named(decision));
                break;
            case NO:
                end();
                sayNo();
                break;
            case LOCKED:
                end();
                begin();
                break;
            default:
                hint(step.hint == null ? R.string.look_straight : Faces.sentence(step.hint));
        }
    }

    private void fail(MienException error) {
        end();
        next(R.string.verify_again, this::beginAnew);
        say(error);
    }

    private void beginAnew() {
        say((CharSequence) null);
        begin();
    }

    /** Lets go of the camera and of what was looked at. */
    private void end() {
        looking.end();
        viewfinder.end();
    }

    // Answering

    /** Returns who it is, and what keeps that from being sure. */
    private String named(Decision found) {
        StringBuilder others = new StringBuilder();
        for (Gallery.Person other : found.also) {
            others.append(others.length() == 0 ? "" : ", ").append(Texts.isolated(other.name));
        }
        String name = Texts.isolated(found.person.name);
        String who =
                found.also.isEmpty() ? getString(R.string.verify_this_is, name) : getString(R.string.verify_tie, name, others);
        return found.isAmongTooMany ? who + "\n" + getString(R.string.verify_too_many) : who;
    }

    private void sayYes(CharSequence why) {
        isAnswered = true;
        setResult(RESULT_OK);
        answer(R.drawable.icon_done, R.string.verify_yes, why);
        setVisible(R.id.verify_pin, false); // there is nothing left to open
        next(R.string.verify_end, this::finish);
    }

    private void sayNo() {
        answer(R.drawable.icon_not, R.string.verify_no, getString(person() == 0 ? R.string.verify_nobody : R.string.verify_not_them));
        next(R.string.verify_again, this::begin);
    }

    /** Counts the seconds down in words that a screen reader does not repeat each time. */
    private void countDown() {
        long leftMs = lockedUntilMs - SystemClock.elapsedRealtime();
        if (leftMs <= 0) {
            begin();
            return;
        }
        long seconds = (leftMs + SECOND_MS - 1) / SECOND_MS;
        String left = getString(R.string.verify_minutes, seconds / 60, seconds % 60);
        answer(R.drawable.icon_wait, R.string.verify_locked, getString(R.string.verify_locked_until, left));
        setVisible(R.id.verify_next, false);
        clock.postDelayed(this::countDown, leftMs - (seconds - 1) * SECOND_MS);
    }

    private void answer(int mark, int title, CharSequence text) {
        setVisible(R.id.camera_place, false);
        setVisible(R.id.verify_liveness, mark == R.drawable.icon_done);
        this.<ImageView>findViewById(R.id.verify_mark).setImageResource(mark);
        setVisible(R.id.verify_hint, false);
        setVisible(R.id.verify_answer, true);
        String said = getString(title);
        if (!said.contentEquals(this.<TextView>findViewById(R.id.verify_answer_title).getText())) {
            setText(R.id.verify_answer_title, said);
        }
        setText(R.id.verify_answer_text, text);
    }

    private void next(int text, Runnable action) {
        setVisible(R.id.verify_next, true);
        Button button = findViewById(R.id.verify_next);
        button.setText(text);
        button.setOnClickListener(view -> action.run());
    }

    private void hint(int sentence) {
        String text = getString(sentence);
        TextView hint = findViewById(R.id.verify_hint);
        if (!text.contentEquals(hint.getText())) { // a screen reader says it once
            hint.setText(text);
        }
    }

    // The way out

    // Its successor cannot ask for the PIN alone before Android 11.
    @SuppressWarnings("deprecation")
    private void askForPin() {
        KeyguardManager lock = getSystemService(KeyguardManager.class);
        Intent question =
                lock.createConfirmDeviceCredentialIntent(
                        getString(R.string.verify_pin_title), getString(R.string.verify_pin_text));
        if (question == null) {
            complain(getText(R.string.verify_no_lock));
        } else {
            startActivityForResult(question, ASKED_FOR_PIN);
        }
    }

    @Override
    protected void onActivityResult(int asked, int result, Intent data) {
        if (asked != ASKED_FOR_PIN || result != RESULT_OK) {
            return;
        }
        clock.removeCallbacksAndMessages(null);
        isAnswered = true;
        end();
        phone().owner.came();
        work(
                () -> {
                    phone().lockout().clear();
                    return true;
                },
                cleared -> {
                    sayYes(getString(R.string.verify_by_pin));
                    setVisible(R.id.verify_liveness, false); // no face was looked at
                });
    }

    // Being in front

    @Override
    protected void onResume() {
        super.onResume();
        viewfinder.onResume();
    }

    @Override
    protected void onPause() {
        viewfinder.onPause();
        super.onPause();
    }

    @Override
    protected void onDestroy() {
        clock.removeCallbacksAndMessages(null);
        looking.end();
        super.onDestroy();
    }

    @Override
    public void onRequestPermissionsResult(int request, String[] permissions, int[] results) {
        viewfinder.onPermission(request, results);
    }
}
