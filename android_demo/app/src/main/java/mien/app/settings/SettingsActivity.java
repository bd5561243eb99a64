package mien.app.settings;

import android.app.Activity;
import android.content.Intent;
import android.content.pm.PackageManager;
import android.os.Bundle;
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
import mien.client.model.ModelSpec;

/** Which fleet, which model with which thresholds and where those come from, what was agreed to, and what this app is. */
public final class SettingsActivity extends Screen {
    private static final int SHORT = 12;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.settings, R.string.settings_title);
        new Rows(findViewById(R.id.settings_app))
                .way(getString(R.string.self_test_title), getString(R.string.self_test_way), () -> open(SelfTestActivity.class))
                .way(getString(R.string.licences_title), getString(R.string.licences_way), () -> open(LicencesActivity.class))
                .fact(0, getString(R.string.language), getString(R.string.language_text))
                .fact(0, getString(R.string.version), version());
    }

    @Override
    protected void onResume() {
        super.onResume();
        showPrivacy();
        work(() -> phone().device.status(), this::showStatus);
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
        work(this::spec, spec -> showModel(status, spec));
    }

    /** Returns what is known of the model in use, null where there is none yet. */
    private ModelSpec spec() {
        try {
            return phone().device.recogniser().model.spec;
        } catch (MienException error) {
            if (error.code() == ErrorCode.NOT_FOUND) {
                return null;
            }
            throw error;
        }
    }

    private void showModel(Status status, ModelSpec spec) {
        Rows model = new Rows(findViewById(R.id.settings_model));
        if (spec == null) {
            model.fact(R.drawable.icon_open, getString(R.string.model_none), getString(R.string.model_none_text));
        } else {
            String id = status.modelId.substring(0, Math.min(SHORT, status.modelId.length()));
            model.fact(0, getString(R.string.model_version), getString(R.string.model_named, spec.backbone, id));
            showThresholds(model, spec);
        }
        if (status.joined) {
            model.way(getString(R.string.model_update), getString(R.string.model_update_text), this::update);
        }
    }

    private void showThresholds(Rows model, ModelSpec spec) {
        if (spec.thresholds.isEmpty()) {
            model.fact(R.drawable.icon_open, getString(R.string.threshold_none), getString(R.string.threshold_none_text));
        }
        for (ModelSpec.Threshold each : spec.thresholds) {
            String strangers = String.format(Locale.getDefault(), "%,d", Math.round(1 / each.fmr));
            model.fact(0, getString(R.string.threshold, strangers), getString(R.string.threshold_from, each.dataset));
        }
    }

    private void update() {
        say(getString(R.string.model_updating));
        ask(
                () -> phone().device.update(),
                changed -> {
                    say(getString(changed ? R.string.model_updated : R.string.model_current));
                    work(() -> phone().device.status(), this::showStatus);
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
