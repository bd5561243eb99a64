package mien.app.settings;

import android.os.Bundle;
import mien.app.R;
import mien.app.Rows;
import mien.app.Screen;

/** Whose work is in this app, and under which licences. */
public final class LicencesActivity extends Screen {
    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        show(R.layout.licences, R.string.licences_title);
        Rows rows = new Rows(findViewById(R.id.licences));
        for (String each : getResources().getStringArray(R.array.licences)) {
            int at = each.indexOf('|');
            rows.fact(0, each.substring(0, at), each.substring(at + 1));
        }
    }
}
