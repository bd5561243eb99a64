"""The AAR holds the client's classes, its rules and a manifest that asks for nothing, with times that never change."""

from __future__ import annotations

import io
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from tests.helpers import ROOT

DEMO: Final = ROOT / "android_demo"
TOOLS: Final = DEMO / "tools"
AAR: Final = TOOLS / "target" / "mien-client.aar"
CLASSES: Final = DEMO / "client" / "target" / "classes"
RULES: Final = DEMO / "client" / "src" / "main" / "resources" / "META-INF" / "proguard" / "mien-client.pro"
ANDROID: Final = "{http://schemas.android.com/apk/res/android}"
JAVA_8: Final = 52
NEVER_CHANGES: Final = (1980, 1, 1, 0, 0, 0)

if not AAR.is_file() or not [*CLASSES.parent.glob("mien-client-*-javadoc.jar")]:
    pytest.skip("the library is not built: make android", allow_module_level=True)


def entries(archive: Path | io.BytesIO) -> dict[str, bytes]:
    """Return what a zip holds; fails where its order or a time could differ between builds."""
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        assert names == sorted(set(names))
        assert {info.date_time for info in opened.infolist()} == {NEVER_CHANGES}
        return {name: opened.read(name) for name in names}


def classes() -> dict[str, bytes]:
    return entries(io.BytesIO(entries(AAR)["classes.jar"]))


def test_it_holds_what_androids_own_build_looks_for_and_no_more() -> None:
    library = entries(AAR)
    assert [*library] == ["AndroidManifest.xml", "R.txt", "classes.jar", "proguard.txt", "res/"]
    assert library["R.txt"] == library["res/"] == b""
    assert library["proguard.txt"] == RULES.read_bytes()


def test_its_manifest_names_the_package_and_the_least_android_and_asks_for_nothing() -> None:
    root = ElementTree.fromstring(entries(AAR)["AndroidManifest.xml"])
    assert root.attrib == {"package": "mien.client"}
    (sdk,) = root
    app = ElementTree.parse(DEMO / "app" / "src" / "main" / "AndroidManifest.xml").getroot().find("uses-sdk")
    assert app is not None
    assert (sdk.tag, sdk.attrib) == ("uses-sdk", {f"{ANDROID}minSdkVersion": app.get(f"{ANDROID}minSdkVersion")})


def test_its_classes_are_the_compiled_client_in_java_8() -> None:
    compiled = {path.relative_to(CLASSES).as_posix(): path.read_bytes() for path in CLASSES.rglob("*.class")}
    assert classes() == compiled
    assert compiled["mien/client/Device.class"]
    assert {struct.unpack(">H", data[6:8])[0] for data in compiled.values()} == {JAVA_8}


def test_its_classes_name_none_of_androids() -> None:
    """So that whoever builds an app on it may choose their own SDK, and a JVM runs it."""
    assert not [name for name, data in classes().items() if re.search(rb"\bandroidx?[/.]", data)]


@pytest.mark.skipif(shutil.which("aapt2") is None, reason="aapt2 is missing: android_demo/tools/require")
def test_another_build_of_the_same_classes_makes_the_same_bytes(tmp_path: Path) -> None:
    """The client's jar has the times of its compiling, and no order that anybody promises."""
    tools, target, jars = tmp_path / "tools", tmp_path / "client" / "target", tmp_path / "tools" / "target" / "jars"
    for folder in (target, jars):
        folder.mkdir(parents=True)
    for name in ("build_aar", "building.py"):
        shutil.copy(TOOLS / name, tools)
    shutil.copytree(DEMO / "client" / "src" / "main", tmp_path / "client" / "src" / "main")
    for jar in (TOOLS / "target" / "jars").glob("android-all-*.jar"):
        (jars / jar.name).symlink_to(jar)
    with zipfile.ZipFile(target / "mien-client-0.1.0.jar", "w") as archive:
        for name, data in sorted(classes().items(), reverse=True):
            archive.writestr(zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 6)), data)
    subprocess.run([sys.executable, tools / "build_aar"], check=True, capture_output=True, timeout=240)
    assert (tools / "target" / AAR.name).read_bytes() == AAR.read_bytes()


def test_sources_and_javadoc_are_of_all_of_the_client() -> None:
    """As Maven installs them beside the jar; Javadoc has a page for each public class."""
    (sources,) = CLASSES.parent.glob("mien-client-*-sources.jar")
    (pages,) = CLASSES.parent.glob("mien-client-*-javadoc.jar")
    java = DEMO / "client" / "src" / "main" / "java"
    written = {path.relative_to(java).as_posix(): path.read_bytes() for path in java.rglob("*.java")}
    with zipfile.ZipFile(sources) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if name.endswith(".java")}
    assert {name: packed.get(name) for name in written} == written
    public = {name for name, text in written.items() if re.search(rb"^public ", text, re.MULTILINE)}
    with zipfile.ZipFile(pages) as archive:
        missing = {name.replace(".java", ".html") for name in public} - set(archive.namelist())
    assert len(public) > 100
    assert not missing


def test_the_readme_names_what_the_client_needs_beside_it() -> None:
    """A file, unlike an artifact of Maven's, brings nothing along."""
    maven = "{http://maven.apache.org/POM/4.0.0}"
    parent, client = (ElementTree.parse(DEMO / name / "pom.xml").getroot() for name in (".", "client"))
    versions = {f"${{{each.tag.removeprefix(maven)}}}": each.text for each in parent.iterfind(f"{maven}properties/*")}
    served = {
        each.findtext(f"{maven}artifactId"): versions[each.findtext(f"{maven}version", "")]
        for each in parent.iter(f"{maven}dependency")
    }
    needed = {
        (each.findtext(f"{maven}groupId"), each.findtext(f"{maven}artifactId", ""))
        for each in client.iterfind(f"{maven}dependencies/{maven}dependency")
        if each.findtext(f"{maven}scope") != "test"
    }
    on_a_phone = {"onnxruntime": "onnxruntime-android"}
    wanted = {f"{group}:{on_a_phone.get(name, name)}:{served[name]}" for group, name in needed}
    assert set(re.findall(r'implementation\("([^"]+)"\)', (DEMO / "README.md").read_text())) == wanted
