"""The example on a real registrar and coordinator, with the real detector and recogniser, on faces of nobody."""

from __future__ import annotations

import shutil
from pathlib import Path

from device_sdk import LowQuality, Match, NoFace, Unknown
from tests.device_sdk.synthetic import OWNER, STRANGER, images_of, sface
from tests.examples.by_path import example
from tests.integration.real_fleet import real_fleet

EXAMPLE = example("enrol_and_verify")


def test_the_owner_is_recognised_and_nobody_else(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for path in images_of(OWNER)[:4]:
        shutil.copy(path, photos)
    own, other = images_of(OWNER)[5], images_of(STRANGER)[0]
    with real_fleet(tmp_path / "fleet") as fleet, fleet.open("phone") as device:
        fleet.release(sface())
        invite = fleet.invite("default")
        outcomes = EXAMPLE.enrol_and_verify(device, invite, "Ada", photos, [own, other])
        assert [type(outcomes[picture]) for picture in (own, other)] == [Match, Unknown]
        assert not device.status().num_agreed
    said = [
        EXAMPLE.in_words("Ada", each) for each in (*outcomes.values(), NoFace("no face"), LowQuality((), "blurred"))
    ]
    assert said == ["this is Ada", "a good face, but not Ada's", "no face", "blurred"]
