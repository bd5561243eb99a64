package mien.client.model;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Fields;
import mien.client.wire.Json;

/**
 * Which releases a device accepts: signed by the pinned key, whole, and never an older one than it has seen.
 *
 * <p>A coordinator, whoever runs it, can therefore not bring back a release that the operator has replaced, unless the
 * newest signature names that very one as one to fall back to.
 */
public final class ReleaseGuard {
    private static final String FILE = "release.json";
    private static final String OWN_VERSION = "0.1.0";

    private final String releaseKey;
    private final Folder folder;

    /** {@code releaseKey} empty: the fleet has none, and every release is taken. */
    public ReleaseGuard(String releaseKey, Folder folder) {
        this.releaseKey = releaseKey;
        this.folder = folder;
    }

    /** Returns what the key signed of an offered release; null for a fleet without a key. */
    public Bundle check(Manifest offered) {
        if (releaseKey.isEmpty()) {
            return null;
        }
        if (offered.bundleJson.length == 0) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "the release is not signed, and this device takes signed ones only; do not use it, tell the operator");
        }
        Bundle signed = Bundle.verify(releaseKey, offered.bundleJson, offered.bundleSignature);
        signed.check(offered);
        if (isOlder(OWN_VERSION, signed.minSdk)) {
            throw new MienException(
                    ErrorCode.VERSION, "the release needs mien " + signed.minSdk + ", this is " + OWN_VERSION + "; upgrade");
        }
        checkOrder(signed);
        return signed;
    }

    /** Remembers a checked release. Call it before the release comes into use: then no crash lets an older one in. */
    public void accept(Bundle checked) {
        if (checked == null) {
            return;
        }
        checkOrder(checked);
        Fields seen = seen();
        if (seen == null || checked.sequence > seen.number("sequence")) {
            Map<String, Object> kept = new LinkedHashMap<>();
            kept.put("release_key", releaseKey);
            kept.put("sequence", checked.sequence);
            kept.put("model_id", checked.modelId);
            kept.put("fallbacks", checked.fallbacks);
            kept.put("manifest_sha256", checked.sha256);
            kept.put("min_sdk", checked.minSdk);
            folder.write(FILE, Bytes.utf8(Json.write(kept)));
        }
    }

    private void checkOrder(Bundle offered) {
        Fields seen = seen();
        if (seen == null) {
            return;
        }
        long newest = seen.number("sequence");
        if (offered.sequence > newest) {
            if (isOlder(offered.minSdk, seen.text("min_sdk"))) {
                throw new MienException(
                        ErrorCode.CORRUPT_DATA,
                        "release " + offered.sequence + " is for older programs than the one before it; tell the operator");
            }
            return;
        }
        boolean same = offered.sequence == newest && offered.sha256.equals(seen.text("manifest_sha256"));
        if (!same && !seen.texts("fallbacks").contains(offered.sha256)) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA,
                    "release " + offered.sequence + " is older than " + newest + ", which this device has seen, and that"
                            + " one does not let it come back; the model that is here stays in use, tell the operator");
        }
    }

    /** Returns the highest release that was accepted under this key, null where there is none. */
    private Fields seen() {
        byte[] data = folder.read(FILE);
        if (data == null) {
            return null;
        }
        Fields seen = Json.object(data, FILE);
        return seen.text("release_key").equals(releaseKey) ? seen : null;
    }

    private static boolean isOlder(String version, String than) {
        List<Integer> a = numbers(version);
        List<Integer> b = numbers(than);
        for (int i = 0; i < 3; i++) {
            if (!a.get(i).equals(b.get(i))) {
                return a.get(i) < b.get(i);
            }
        }
        return false;
    }

    private static List<Integer> numbers(String version) {
        List<Integer> numbers = new ArrayList<>();
        for (String piece : version.split("[^0-9]+")) {
            if (!piece.isEmpty() && numbers.size() < 3) {
                numbers.add(Integer.parseInt(piece));
            }
        }
        while (numbers.size() < 3) {
            numbers.add(0);
        }
        return numbers;
    }
}
