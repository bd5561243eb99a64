"""The example on a real registrar and coordinator, with the real detector and recogniser, on faces of nobody."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from device_sdk import LowQuality, Match, NoFace, Unknown
from tests.device_sdk.synthetic import OWNER, STRANGER, images_of, sface
from tests.examples.by_path import example
from tests.integration.real_fleet import real_fleet

EXAMPLE = example("enrol_and_verify")


def test_without_a_fleet_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for path in images_of(OWNER)[:4]:
        shutil.copy(path, photos)
    own = images_of(OWNER)[5]
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with redirect_stdout(io.StringIO()) as printed:
            EXAMPLE.main("Ada", str(photos), str(own))
        assert printed.getvalue() == f"{own}: this is Ada\n"


def test_the_owner_is_recognised_and_nobody_else(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for path in images_of(OWNER)[:4]:
        shutil.copy(path, photos)
    own, other = images_of(OWNER)[5], images_of(STRANGER)[0]
    with real_fleet(tmp_path / "fleet") as fleet, fleet.open("phone") as device:
        fleet.release(sface())
        invite = fleet.invite("default")
        outcomes = EXAMPLE.enrol_and_verify(device, "Ada", photos, [own, other], invite=invite)
        assert [type(outcomes[picture]) for picture in (own, other)] == [Match, Unknown]
        assert not device.status().num_agreed
    said = [
        EXAMPLE.in_words("Ada", each) for each in (*outcomes.values(), NoFace("no face"), LowQuality((), "blurred"))
    ]
    assert said == ["this is Ada", "a good face, but not Ada's", "no face", "blurred"]
