"""The app's words: the same in both languages, and no promise that the threat model does not make."""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree

import pytest

from tests.helpers import ROOT

RES: Final = ROOT / "android_demo" / "app" / "src" / "main" / "res"
# A sum tells something of each phone in it, and certificates are renewed and models fetched without any training.
TOO_MUCH: Final = re.compile(
    "only masked|nur maskierte|nothing leaves|verlässt es nichts|nobody can tell|niemand kann den teil|"
    "went over many|gingen über viele|anything from which|nichts, woran eines",
    re.IGNORECASE,
)
# Enrolled, not photographed; and the lock of a phone may be a pattern.
MISLEADING: Final = re.compile(r"aufgenommen|aufnehmen|nehmen sie (sie|andere)\b.* auf\b|\bPIN\b", re.IGNORECASE)
FILES: Final = ("strings.xml", "strings_camera.xml")


def words(folder: str) -> dict[str, str]:
    """Return every string of a language by name; those of a plural by name and quantity."""
    found: dict[str, str] = {}
    for file in FILES:
        for each in ElementTree.parse(RES / folder / file).getroot():
            for item in list(each) or [each]:
                found[f"{each.get('name')} {item.get('quantity', '')}".strip()] = item.text or ""
    return found


def test_both_languages_say_the_same_things() -> None:
    english, german = words("values"), words("values-de")
    assert english.keys() == german.keys()
    for name, text in english.items():
        assert sorted(re.findall(r"%(?:\d\$)?[,.\d]*[a-z]", text)) == sorted(
            re.findall(r"%(?:\d\$)?[,.\d]*[a-z]", german[name])
        ), name


@pytest.mark.parametrize("folder", ["values", "values-de"])
def test_no_more_is_promised_than_holds(folder: str) -> None:
    said = {name: text for name, text in words(folder).items() if TOO_MUCH.search(text)}
    assert not said


@pytest.mark.parametrize("folder", ["values", "values-de"])
def test_no_word_misleads(folder: str) -> None:
    said = {name: text for name, text in words(folder).items() if MISLEADING.search(text)}
    assert not said


@pytest.mark.parametrize("folder", ["values", "values-de"])
def test_nobody_has_to_say_that_fingerprints_were_compared(folder: str) -> None:
    """Whoever invited reads them out; what joining trusts without that is said, and the one button promises nothing."""
    said = words(folder)
    wanted = {
        "values": ("Join", "Whoever invited you", "read out", "cannot compare", "the way"),
        "values-de": ("Beitreten", "Wer Sie eingeladen hat", "vorlesen", "nicht vergleichen", "den Weg, auf dem"),
    }[folder]
    assert said["join_do"] == wanted[0]
    assert all(each in said["join_compare"] for each in wanted[1:3]), said["join_compare"]
    assert all(each in said["join_uncompared"] for each in wanted[3:]), said["join_uncompared"]


@pytest.mark.parametrize("folder", ["values", "values-de"])
def test_what_leaves_without_training_is_said(folder: str) -> None:
    """As docs/device.md has it: key, certificate, address, version, when it calls."""
    said = words(folder)["welcome_leaves_always"]
    wanted = {
        "values": ("registrar", "public key", "address", "coordinator", "certificate", "version", "when it calls"),
        "values-de": ("Anmeldestelle", "Schlüssel", "Adresse", "Koordinator", "Zertifikat", "Version", "wann"),
    }[folder]
    assert all(each in said for each in wanted), said
