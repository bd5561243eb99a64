"""What the app's manifest says of its data and its languages, and that it is true."""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree

import pytest

from tests.helpers import ROOT

MAIN: Final = ROOT / "android_demo" / "app" / "src" / "main"
ANDROID: Final = "{http://schemas.android.com/apk/res/android}"


def application() -> dict[str, str]:
    """Return the attributes of the manifest's application, without their name space."""
    found = ElementTree.parse(MAIN / "AndroidManifest.xml").getroot().find("application")
    assert found is not None
    return {name.removeprefix(ANDROID): value for name, value in found.attrib.items()}


def resource(name: str) -> ElementTree.Element:
    """Return an XML resource that the manifest names."""
    return ElementTree.parse(MAIN / "res" / f"{name.removeprefix('@')}.xml").getroot()


@pytest.mark.parametrize("way", ["cloud-backup", "device-transfer"])
def test_nothing_moves_to_another_phone(way: str) -> None:
    """Since Android 12 allowBackup does not keep an owner's choices from moving by a cable."""
    assert application()["allowBackup"] == "false"
    rules = resource(application()["dataExtractionRules"]).find(way)
    assert rules is not None
    assert {(each.tag, each.get("domain"), each.get("path")) for each in rules} == {
        ("exclude", domain, None) for domain in ("root", "file", "database", "sharedpref", "external")
    }


def test_the_languages_are_those_that_there_are_words_in() -> None:
    named = {each.get(f"{ANDROID}name") for each in resource(application()["localeConfig"])}
    folders = (MAIN / "res").glob("values*/strings.xml")
    assert named == {path.parent.name.removeprefix("values").removeprefix("-") or "en" for path in folders}


def test_the_gradle_files_say_what_the_tested_build_says() -> None:
    """They cannot be run without Android's SDK; at least nobody has to look for what they forgot."""
    demo = ROOT / "android_demo"
    app = (demo / "app" / "build.gradle.kts").read_text()
    sdk = ElementTree.parse(MAIN / "AndroidManifest.xml").getroot().find("uses-sdk")
    assert sdk is not None
    for name in ("minSdk", "targetSdk"):
        assert f"{name} = {sdk.get(f'{ANDROID}{name}Version')}\n" in app
    maven = "{http://maven.apache.org/POM/4.0.0}"
    for module in ("client", "app"):
        pom = ElementTree.parse(demo / module / "pom.xml").getroot()
        needed = {each.findtext(f"{maven}artifactId", "") for each in pom.iter(f"{maven}dependency")} - {"mien-client"}
        gradle = (demo / module / "build.gradle.kts").read_text()
        missing = {each for each in needed - {"junit"} if f":{each}" not in gradle}
        assert not missing, (module, missing)
    parent = (demo / "pom.xml").read_text()
    named = (demo / "build.gradle.kts").read_text().split("listOf(")[1].split(")")[0]
    assert all(f"<{name.strip().strip(chr(34))}.version>" in parent for name in named.split(","))
