package mien.app.enrol;

import android.app.AlertDialog;
import android.content.Intent;
import android.content.pm.ActivityInfo;
import android.content.res.Resources;
import android.text.Editable;
import android.text.TextWatcher;
import android.view.HapticFeedbackConstants;
import android.widget.CheckBox;
import android.widget.EditText;
import android.widget.TextView;
import java.text.Normalizer;
import java.util.List;
import java.util.stream.Collectors;
import mien.app.Extras;
import mien.app.OwnersScreen;
import mien.app.R;
import mien.app.camera.Cameras;
import mien.app.camera.Faces;
import mien.app.camera.FrameSource;
import mien.app.camera.Guide;
import mien.app.camera.Looking;
import mien.app.camera.Viewfinder;
import mien.app.training.TrainingActivity;
import mien.app.verify.VerifyActivity;
import mien.client.DeviceEnroller;
import mien.client.ErrorCode;
import mien.client.KnownFaceException;
import mien.client.MienException;
import mien.client.enrol.Consent;
import mien.client.enrol.EnrolmentSession;
import mien.client.enrol.Pose;
import mien.client.people.Gallery;
import mien.client.vision.FaceReader;
import mien.client.vision.Yuv;
import mien.client.wire.Texts;

/**
 * Enrols a person: they agree first, then the camera takes pictures in three poses, then all of it is stored or nothing.
 * It may be left at any time; what was taken until then is forgotten.
 */
public final class EnrolActivity extends OwnersScreen implements Viewfinder.Looker {
    /** Two of each pose. */
    private static final int NUM_PICTURES = 6;

    private Viewfinder viewfinder;
    private Guide guide;
    private final Looking<EnrolmentSession.Progress> looking = new Looking<>(this, this::take, this::fail);
    private EnrolmentSession session;
    private EnrolmentSession.Progress shown;
    private AlertDialog known;
    private String name = "";
    private boolean trains;
    private boolean isInFront;

    @Override
    protected boolean showsFaces() {
        return true;
    }

    @Override
    protected void open() {
        askForConsent();
    }

    // Agreeing

    private void askForConsent() {
        show(R.layout.enrol_consent, R.layout.enrol_consent_bar, R.string.enrol_title);
        setText(R.id.enrol_what, getResources().getQuantityString(R.plurals.enrol_what, NUM_PICTURES, NUM_PICTURES));
        EditText field = findViewById(R.id.enrol_name);
        field.setText(name);
        field.addTextChangedListener(new Changed());
        // Not only a click: a screen that was turned gets its ticks back, too.
        this.<CheckBox>findViewById(R.id.enrol_recognises).setOnCheckedChangeListener((box, agreed) -> allowBeginning());
        onClick(R.id.enrol_begin, this::prepare);
        allowBeginning();
    }

    private void allowBeginning() {
        boolean isAgreed = this.<CheckBox>findViewById(R.id.enrol_recognises).isChecked();
        boolean isNamed = !nameInField().isEmpty();
        findViewById(R.id.enrol_begin).setEnabled(isAgreed && isNamed);
    }

    private String nameInField() {
        String typed = this.<EditText>findViewById(R.id.enrol_name).getText().toString();
        return Normalizer.normalize(typed, Normalizer.Form.NFC).trim();
    }

    private void prepare() {
        name = nameInField();
        trains = this.<CheckBox>findViewById(R.id.enrol_trains).isChecked();
        Consent consent = trains ? Consent.RECOGNISE_AND_TRAIN : Consent.RECOGNISE;
        findViewById(R.id.enrol_begin).setEnabled(false);
        setVisible(R.id.enrol_preparing, true);
        work(() -> begun(consent), this::look, this::sayWhyNot);
    }

    /** Returns a session that may begin; whatever can refuse this person does so before the camera looks. */
    private EnrolmentSession begun(Consent consent) {
        for (Gallery.Person person : phone().device().people()) {
            if (person.name.equals(name)) {
                throw new MienException(ErrorCode.ALREADY_EXISTS, "somebody of that name is enrolled; choose another");
            }
        }
        FaceReader reader = Faces.prepare(getApplicationContext(), phone().device());
        return new EnrolmentSession(name, consent, reader, new DeviceEnroller(phone().device()), NUM_PICTURES);
    }

    private void sayWhyNot(MienException error) {
        setVisible(R.id.enrol_preparing, false);
        allowBeginning();
        say(error);
    }

    // Looking

    private void look(EnrolmentSession begun) {
        session = begun;
        shown = null;
        setRequestedOrientation(ActivityInfo.SCREEN_ORIENTATION_LOCKED);
        showFilling(R.layout.enrol_look, R.string.enrol_title);
        onClick(R.id.enrol_cancel, this::finish);
        guide = Guide.face(this);
        FrameSource camera = Cameras.open(this, FrameSource.Facing.FRONT, Faces.LEAST_PIXELS);
        viewfinder = new Viewfinder(this, camera, guide, R.string.enrol_why, this);
        show(begun.progress());
        looking.begin(begun::offer);
        viewfinder.begin();
        if (isInFront) {
            viewfinder.onResume();
        }
    }

    @Override
    public void onFrame(Yuv picture, int rotationDeg) {
        looking.onFrame(picture, rotationDeg);
    }

    @Override
    public void onLooking(boolean isLooking, boolean hasTorch) {
        setVisible(R.id.enrol_hint, isLooking);
    }

    private void take(EnrolmentSession.Progress progress) {
        show(progress);
        if (progress.isComplete()) {
            store();
        }
    }

    private void show(EnrolmentSession.Progress progress) {
        if (shown != null && progress.numTaken > shown.numTaken) {
            guide.performHapticFeedback(HapticFeedbackConstants.VIRTUAL_KEY);
        }
        if (shown == null || progress.numTaken != shown.numTaken) {
            guide.show(progress);
            setText(R.id.enrol_progress, getString(R.string.enrol_progress, progress.numTaken, progress.numWanted));
        }
        shown = progress;
        int sentence = progress.hint != null ? Faces.sentence(progress.hint) : sentence(progress.pose);
        TextView hint = findViewById(R.id.enrol_hint);
        String text = getString(sentence);
        if (!text.contentEquals(hint.getText())) { // a screen reader says it once
            hint.setText(text);
        }
    }

    private static int sentence(Pose pose) {
        if (pose == null) {
            return R.string.enrol_storing;
        }
        return pose == Pose.LEFT
                ? R.string.enrol_turn_left
                : pose == Pose.RIGHT ? R.string.enrol_turn_right : R.string.look_straight;
    }

    // Storing

    private void store() {
        looking.end();
        viewfinder.end();
        viewfinder = null;
        setVisible(R.id.enrol_hint, true);
        setVisible(R.id.enrol_cancel, false);
        store(false);
    }

    private void store(boolean anyway) {
        EnrolmentSession complete = session;
        onBack(() -> {}); // what is just being stored is there in a moment; it cannot be half cancelled
        work(() -> stored(complete, anyway), this::showDone, this::fail);
    }

    private EnrolmentSession.Enrolled stored(EnrolmentSession complete, boolean anyway) {
        EnrolmentSession.Enrolled enrolled = complete.finish(anyway);
        phone().settle(this);
        return enrolled;
    }

    private void fail(MienException error) {
        onBack(null);
        if (error instanceof KnownFaceException) {
            askWhetherAnyway(((KnownFaceException) error).names);
            return;
        }
        forget();
        askForConsent();
        if (error.code() == ErrorCode.LOW_QUALITY) {
            complain(getText(R.string.enrol_unlike));
        } else {
            say(error);
        }
    }

    /** Has the owner say whether the face of somebody who is enrolled is somebody else's, too. */
    private void askWhetherAnyway(List<String> names) {
        String all = names.stream().map(Texts::isolated).collect(Collectors.joining(", "));
        known =
                new AlertDialog.Builder(this)
                        .setTitle(R.string.enrol_known_title)
                        .setMessage(getString(R.string.enrol_known_text, all))
                        .setPositiveButton(R.string.enrol_anyway, (dialog, which) -> asOwner(() -> store(true)))
                        .setNegativeButton(R.string.enrol_known_not, (dialog, which) -> finish())
                        .setCancelable(false)
                        .show();
    }

    private void showDone(EnrolmentSession.Enrolled enrolled) {
        onBack(null);
        session = null;
        show(R.layout.enrol_done, R.string.enrol_title);
        Resources words = getResources();
        setText(R.id.enrol_done_title, getString(R.string.enrol_done_title, name));
        setText(
                R.id.enrol_done_text,
                words.getQuantityString(R.plurals.enrol_done, enrolled.numUsed, enrolled.numUsed));
        setVisible(R.id.enrol_left_out, enrolled.numRefused > 0);
        setText(
                R.id.enrol_left_out,
                words.getQuantityString(R.plurals.enrol_left_out, enrolled.numRefused, enrolled.numRefused));
        boolean waits = trains && !phone().choices.letsTrain();
        setVisible(R.id.enrol_off, waits);
        onClick(R.id.enrol_try, () -> tryIt(enrolled.person));
        onClick(R.id.enrol_training, () -> startActivity(new Intent(this, TrainingActivity.class)));
        onClick(R.id.enrol_end, this::finish);
        setResult(RESULT_OK);
    }

    /** Has the camera look whether it recognises whom it just saw, and nobody else. */
    private void tryIt(int person) {
        startActivity(new Intent(this, VerifyActivity.class).putExtra(Extras.PERSON, person));
        finish();
    }

    // Leaving

    private void forget() {
        looking.end();
        if (viewfinder != null) {
            viewfinder.end();
            viewfinder = null;
        }
        if (known != null) {
            known.dismiss();
            known = null;
        }
        if (session != null) {
            EnrolmentSession over = session;
            session = null;
            phone().work.run(() -> cancelled(over), done -> {}, this::say); // what is just being stored holds it
        }
        setRequestedOrientation(ActivityInfo.SCREEN_ORIENTATION_UNSPECIFIED);
    }

    private static boolean cancelled(EnrolmentSession over) {
        over.cancel();
        return true;
    }

    @Override
    protected void onDestroy() {
        forget();
        super.onDestroy();
    }

    @Override
    protected void onResume() {
        super.onResume();
        isInFront = true;
        if (viewfinder != null) {
            viewfinder.onResume();
        }
    }

    @Override
    protected void onPause() {
        isInFront = false;
        if (viewfinder != null) {
            viewfinder.onPause();
        }
        super.onPause();
    }

    @Override
    public void onRequestPermissionsResult(int request, String[] permissions, int[] results) {
        if (viewfinder != null) {
            viewfinder.onPermission(request, results);
        }
    }

    private final class Changed implements TextWatcher {
        @Override
        public void beforeTextChanged(CharSequence text, int start, int count, int after) {}

        @Override
        public void onTextChanged(CharSequence text, int start, int before, int count) {}

        @Override
        public void afterTextChanged(Editable text) {
            allowBeginning();
        }
    }
}
