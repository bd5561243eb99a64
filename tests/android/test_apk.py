"""The APK is what tools/verify_apk says; with a changed byte, another permission or other native code it is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from mien.models.known_models import YUNET
from tests.helpers import ROOT

TOOLS: Final = ROOT / "android_demo" / "tools"
BUILT: Final = TOOLS / "target"
APK: Final = BUILT / "mien-demo.apk"
RELEASE: Final = BUILT / "mien-release.apk"
MANIFEST: Final = ROOT / "android_demo" / "app" / "src" / "main" / "AndroidManifest.xml"

if missing := subprocess.run(
    [TOOLS / "require", "--names"], capture_output=True, text=True, check=False
).stdout.strip():
    pytest.skip(f"the app's tools are missing: {missing}", allow_module_level=True)
if not (APK.is_file() and RELEASE.is_file()):
    pytest.skip("the app is not built: make android", allow_module_level=True)


def run(*command: object) -> None:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def verdict(*arguments: str | Path) -> tuple[int, str]:
    """Return the exit code of tools/verify_apk and what it said."""
    command = [TOOLS / "verify_apk", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr


def signed(target: Path, changed: Mapping[str, bytes], source: Path = APK) -> Path:
    """Sign an app's entries, without its native code, with others added or in their place."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target.with_suffix(".zip"), "w") as new:
        kept = {name: old.read(name) for name in old.namelist() if not name.startswith(("lib/", "META-INF/"))}
        for name, data in (kept | dict(changed)).items():
            stored = zipfile.ZIP_STORED if name == "resources.arsc" else zipfile.ZIP_DEFLATED
            new.writestr(name, data, stored)
    store, password = target.with_suffix(".p12"), "public"
    key = ("-alias", "a", "-dname", "CN=a", "-keyalg", "EC", "-groupname", "secp256r1", "-storetype", "PKCS12")
    run("keytool", "-genkeypair", "-keystore", store, "-storepass", password, *key)
    run("zipalign", "-p", "4", target.with_suffix(".zip"), target.with_suffix(".aligned"))
    options = ("--ks", store, "--ks-pass", f"pass:{password}", "--min-sdk-version", "29", "--out", target)
    run("apksigner", "sign", *options, target.with_suffix(".aligned"))
    return target


def manifest_with(folder: Path, *edits: tuple[str, str]) -> bytes:
    """Return the app's manifest, edited, in the form that an APK holds."""
    text = MANIFEST.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "AndroidManifest.xml").write_text(text)
    linked = folder / "linked.zip"
    framework = next((BUILT / "jars").glob("android-all-*.jar"))  # what tools/build_apk links with
    flags = ("--auto-add-overlay", "-I", framework, "--manifest", folder / "AndroidManifest.xml")
    run("aapt2", "link", *flags, "-o", linked, BUILT / "res.zip")
    with zipfile.ZipFile(linked) as archive:
        return archive.read("AndroidManifest.xml")


def test_the_app_passes() -> None:
    code, told = verdict(APK)
    assert code == 0, told
    assert re.search(r"mien-demo\.apk: \d+\.\d MB, \d+,\d+ methods; .* \(arm64-v8a\)", told)


def test_a_release_holds_no_tests_and_no_way_to_them() -> None:
    code, told = verdict("--release", RELEASE)
    assert code == 0, told
    with zipfile.ZipFile(RELEASE) as apk:
        assert not [name for name in apk.namelist() if "golden" in name or "tests" in name]
        dex = apk.read("classes.dex")
    assert b"mien.app.settings.SelfTestActivity" in dex  # the name by which settings look for it
    for absent in (b"Lmien/app/settings/SelfTestActivity;", b"Lorg/junit/", b"JUnitCore"):
        assert absent not in dex
    dump = ["aapt", "dump", "xmltree", str(RELEASE), "AndroidManifest.xml"]
    tree = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    assert "SettingsActivity" in tree
    assert "SelfTestActivity" not in tree


def test_an_app_with_tests_is_no_release(tmp_path: Path) -> None:
    code, told = verdict("--release", APK)
    assert code == 1
    assert "holds tests in classes.dex: ['Ljunit/" in told
    fed = signed(tmp_path / "fed.apk", {"assets/golden/client/noise.json": b"{}"}, source=RELEASE)
    code, told = verdict("--release", fed)
    assert code == 1
    assert "holds what the client's tests read" in told


def test_a_changed_byte_is_refused(tmp_path: Path) -> None:
    changed = tmp_path / "changed.apk"
    shutil.copy(APK, changed)
    with changed.open("r+b") as file:
        file.seek(APK.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    code, told = verdict(changed)
    assert code == 1
    assert "apksigner refuses it" in told


def test_permissions_and_exported_parts_that_are_not_listed_are_refused(tmp_path: Path) -> None:
    contacts = '<uses-permission android:name="android.permission.READ_CONTACTS" />\n    <application'
    service = '<service android:name=".Spy" android:exported="true" />\n    </application>'
    manifest = manifest_with(tmp_path, ("<application", contacts), ("</application>", service))
    code, told = verdict(signed(tmp_path / "more.apk", {"AndroidManifest.xml": manifest}))
    assert code == 1
    listed = "exported service mien.app.Spy, uses-permission android.permission.READ_CONTACTS"
    assert f"has what tools/allowed.txt does not list: {listed}" in told


def test_an_app_that_can_be_debugged_is_refused(tmp_path: Path) -> None:
    manifest = manifest_with(tmp_path, ("<application", '<application android:debuggable="true"'))
    code, told = verdict(signed(tmp_path / "debuggable.apk", {"AndroidManifest.xml": manifest}))
    assert code == 1
    assert "can be debugged" in told


def test_other_native_code_is_refused(tmp_path: Path) -> None:
    code, told = verdict(signed(tmp_path / "other.apk", {"lib/arm64-v8a/libother.so": b"\x7fELF"}))
    assert code == 1
    assert "holds other native code than ONNX Runtime's for arm64-v8a" in told


def test_the_face_detector_is_the_one_that_python_uses() -> None:
    assert YUNET.sha256 in (TOOLS / "pinned.py").read_text()
    with zipfile.ZipFile(APK) as apk:
        assert len(apk.read(f"assets/{YUNET.filename}")) == YUNET.size_bytes


def signer(apk: Path) -> str:
    """Return the hash of the certificate that an APK is signed with."""
    done = subprocess.run(["apksigner", "verify", "--print-certs", apk], capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if "SHA-256" in line and "certificate" in line)


def by_keystore(keystore: Path, password: str, *targets: Path) -> subprocess.CompletedProcess[str]:
    """Sign the unsigned app anew by the key in a file."""
    script = "import sys; from pathlib import Path; import signing; store = signing.prepare(Path(sys.argv[1]))\n"
    script += "for target in sys.argv[2:]: signing.sign(Path(target), 'unsigned.apk', store)"
    env = {**os.environ, "PYTHONPATH": str(TOOLS), "MIEN_KEYSTORE_PASSWORD": password}
    command = [sys.executable, "-c", script, str(keystore), *map(str, targets)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)


def test_a_key_that_is_kept_signs_every_build(tmp_path: Path) -> None:
    key, first, second = tmp_path / "kept.p12", tmp_path / "1.apk", tmp_path / "2.apk"
    for target in (first, second):
        done = by_keystore(key, "a password", target)
        assert done.returncode == 0, done.stdout + done.stderr
    assert signer(first) == signer(second) != signer(APK)
    assert key.stat().st_mode & 0o077 == 0


def test_a_key_in_the_repository_or_without_its_password_is_refused(tmp_path: Path) -> None:
    inside = by_keystore(ROOT / "kept.p12", "a password")
    assert inside.returncode == 1
    assert "keep a signing key outside" in inside.stderr
    assert not (ROOT / "kept.p12").exists()
    assert "set MIEN_KEYSTORE_PASSWORD" in by_keystore(tmp_path / "kept.p12", "").stderr
    assert by_keystore(tmp_path / "kept.p12", "a password").returncode == 0
    assert "keytool failed" in by_keystore(tmp_path / "kept.p12", "another").stderr
