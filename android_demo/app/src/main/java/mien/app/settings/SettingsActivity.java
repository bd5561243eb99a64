package mien.app.settings;

import android.app.Activity;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.os.Bundle;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import mien.app.Extras;
import mien.app.Limit;
import mien.app.R;
import mien.app.Rows;
import mien.app.Say;
import mien.app.Screen;
import mien.app.join.JoinActivity;
import mien.app.welcome.WelcomeActivity;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Status;
import mien.client.model.Model;
import mien.client.model.ModelSpec;
import mien.client.model.Subject;
import mien.client.wire.Retry;
import mien.client.wire.Texts;

/** Which fleet, which model with which thresholds and where those come from, what was agreed to, and what this app is. */
public final class SettingsActivity extends Screen {
    private static final int SHORT = 12;
    /** By its name, for a release does not hold it. */
    private static final String CHECK = "mien.app.settings.SelfTestActivity";

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.settings, R.string.settings_title);
        Rows app = new Rows(findViewById(R.id.settings_app));
        Intent check = new Intent().setClassName(this, CHECK);
        if (check.resolveActivityInfo(getPackageManager(), 0) != null) {
            app.way(getString(R.string.self_test_title), getString(R.string.self_test_way), () -> startActivity(check));
        }
        app.way(getString(R.string.licences_title), getString(R.string.licences_way), () -> open(LicencesActivity.class))
                .fact(0, getString(R.string.language), getString(R.string.language_text))
                .fact(0, getString(R.string.version), version());
    }

    @Override
    protected void onResume() {
        super.onResume();
        showPrivacy();
        work(() -> phone().device().status(), this::showStatus);
    }

    private void showStatus(Status status) {
        Rows fleet = new Rows(findViewById(R.id.settings_fleet));
        if (!status.joined) {
            int why = status.lostKey ? R.string.lost_title : R.string.settings_not_joined;
            fleet.way(getString(R.string.join_title), getString(why), () -> open(JoinActivity.class));
        } else {
            fleet.fact(0, getString(R.string.settings_population), status.population);
            fleet.fact(0, getString(R.string.settings_coordinator), status.coordinator);
            fleet.fact(0, getString(R.string.settings_device), status.deviceId);
            fleet.fact(0, getString(R.string.settings_certificate), Say.day(this, status.certificateEndsMs));
        }
        work(this::model, model -> showModel(status, model));
    }

    /** Returns the model in use, null where there is none yet. */
    private Model model() {
        try {
            return phone().device().recogniser().model;
        } catch (MienException error) {
            if (error.code() == ErrorCode.NOT_FOUND) {
                return null;
            }
            throw error;
        }
    }

    private void showModel(Status status, Model model) {
        Rows rows = new Rows(findViewById(R.id.settings_model));
        if (model == null) {
            rows.fact(R.drawable.icon_not, getString(R.string.model_none), getString(R.string.model_none_text));
        } else {
            String id = model.modelId.substring(0, SHORT);
            rows.fact(0, getString(R.string.model_version), getString(R.string.model_named, model.spec.backbone, id));
            showThresholds(rows, model.spec);
            showGroups(rows, model);
        }
        if (model != null) {
            rows.way(getString(R.string.personal_title), getString(R.string.personal_way), () -> open(PersonalActivity.class));
        }
        if (status.joined) {
            rows.way(getString(R.string.model_update), getString(R.string.model_update_text), this::update);
        }
    }

    private void showThresholds(Rows rows, ModelSpec spec) {
        if (spec.thresholds.isEmpty()) {
            rows.fact(R.drawable.icon_not, getString(R.string.threshold_none), getString(R.string.threshold_none_text));
        }
        for (ModelSpec.Threshold each : spec.thresholds) {
            String strangers = String.format(Locale.getDefault(), "%,d", Math.round(1 / each.fmr));
            rows.fact(0, getString(R.string.threshold, strangers), getString(R.string.threshold_from, each.dataset));
        }
    }

    /** Says whom the model was measured on, and for whom it is not to be relied on. */
    private void showGroups(Rows rows, Model model) {
        List<ModelSpec.Group> measured = model.spec.groupsMeasured(model.modelId);
        List<String> told = new ArrayList<>();
        List<String> above = new ArrayList<>();
        for (ModelSpec.Group each : measured) {
            told.add(Texts.isolated(each.toString()));
            if (each.isAboveRate) {
                above.add(Texts.isolated(each.toString()));
            }
        }
        if (!told.isEmpty()) {
            String among = getString(R.string.measured_groups_text, String.join(", ", told));
            rows.fact(0, getString(R.string.measured_groups), among);
        }
        if (!above.isEmpty()) {
            String who = getString(R.string.groups_above, String.join(", ", above));
            rows.fact(R.drawable.icon_not, who, getString(R.string.groups_above_text));
        }
        List<String> never = new ArrayList<>();
        for (Subject subject : Subject.without(measured)) {
            never.add(getString(sentence(subject)));
        }
        never.add(getString(R.string.unmeasured_ageing));
        never.add(getString(R.string.unmeasured_replays));
        rows.fact(R.drawable.icon_not, getString(R.string.unmeasured), String.join("; ", never));
    }

    private static int sentence(Subject subject) {
        switch (subject) {
            case CHILDREN:
                return R.string.unmeasured_children;
            case YOUNG:
                return R.string.unmeasured_young;
            case OLD:
                return R.string.unmeasured_old;
            case SEXES:
                return R.string.unmeasured_sexes;
            case ORIGINS:
                return R.string.unmeasured_origins;
            case RELATIVES:
                return R.string.unmeasured_relatives;
            default:
                return R.string.unmeasured_covers;
        }
    }

    private void update() {
        say(getString(R.string.model_updating));
        ask(
                () -> phone().device().update(Retry.AT_A_SCREEN_MS),
                changed -> {
                    say(getString(changed ? R.string.model_updated : R.string.model_current));
                    work(() -> phone().device().status(), this::showStatus);
                });
    }

    private void showPrivacy() {
        Rows privacy =
                new Rows(findViewById(R.id.settings_privacy))
                        .way(getString(R.string.settings_agreed), getString(agreed()), () -> open(WelcomeActivity.class));
        for (Limit limit : Limit.values()) {
            String present = LimitActivity.said(this, limit, phone().choices.of(limit));
            Intent screen = new Intent(this, LimitActivity.class).putExtra(Extras.LIMIT, limit.name());
            privacy.way(getString(limit.title), present, () -> startActivity(screen));
        }
    }

    private int agreed() {
        if (!phone().choices.recognises()) {
            return R.string.agreed_nothing;
        }
        return phone().choices.trains() ? R.string.agreed_both : R.string.agreed_recognises;
    }

    private String version() {
        try {
            return getPackageManager().getPackageInfo(getPackageName(), 0).versionName;
        } catch (PackageManager.NameNotFoundException error) {
            throw new IllegalStateException("this app is installed", error);
        }
    }

    private void open(Class<? extends Activity> screen) {
        startActivity(new Intent(this, screen));
    }
}
