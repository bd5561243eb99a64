"""A device in no fleet: it enrols, verifies and identifies people with the recogniser that comes with the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Device, Match, NoFace, Unknown, verify_pair
from device_sdk.models.packaged import packaged_model
from mien.errors import ConfigError, CorruptDataError, InviteError
from tests.device_sdk.synthetic import DECIDES_AT, OWNER, STRANGER, images_of

OPTIONS = {"keystore": "file", "verification.threshold": DECIDES_AT}
"""The packaged threshold is of real people; these are drawn."""


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    with Device.open(tmp_path / "home", options=OPTIONS) as opened:
        yield opened


def test_it_recognises_people_without_a_fleet(device: Device) -> None:
    mine, other = images_of(OWNER), images_of(STRANGER)
    device.enroll("Ada", mine[:3], consent=False, anyway=True)
    assert not device.is_in_fleet
    assert device.gallery.model_id == packaged_model().model_id
    assert isinstance(device.verify("Ada", mine[4]), Match)
    assert isinstance(device.verify("Ada", other[0]), Unknown)
    assert isinstance(device.identify(mine[4]), Match)
    assert device.status().device_id is None


def test_what_was_lost_of_the_recogniser_comes_back(device: Device, tmp_path: Path) -> None:
    mine = images_of(OWNER)
    device.enroll("Ada", mine[:3], consent=False, anyway=True)
    for path in (tmp_path / "home" / "models").iterdir():
        if path.is_file():
            path.unlink()
    assert isinstance(device.verify("Ada", mine[4]), Match)


def test_an_update_mends_what_was_damaged_of_the_recogniser(device: Device, tmp_path: Path) -> None:
    mine, model = images_of(OWNER), packaged_model()
    device.enroll("Ada", mine[:3], consent=False, anyway=True)
    (parameters,) = (path for path in (tmp_path / "home" / "models").iterdir() if path.stat().st_size > 10**6)
    parameters.write_bytes(bytes(parameters.stat().st_size))
    with pytest.raises(CorruptDataError, match=r"call `Device\.update\(\)`"):
        device.verify("Ada", mine[4])
    assert not device.update().changed
    np.testing.assert_array_equal(device.models.load(model.model_id).theta, model.theta)
    assert isinstance(device.verify("Ada", mine[4]), Match)


def test_an_update_takes_the_packaged_recogniser(device: Device) -> None:
    first, second = device.update(), device.update()
    assert (first.changed, second.changed) == (True, False)
    assert first.model_id == packaged_model().model_id


def test_a_personal_model_needs_a_fleet(device: Device) -> None:
    device.update()
    with pytest.raises(ConfigError, match="join a fleet"):
        device.personalise()


def test_training_needs_a_fleet(device: Device) -> None:
    with pytest.raises(InviteError, match=r"call `Device\.join\(\)`"):
        next(device.participate(rounds=1))


def test_a_pair_is_compared_and_nothing_is_stored(device: Device, tmp_path: Path) -> None:
    mine, other = images_of(OWNER), images_of(STRANGER)
    match device.verify_pair(mine[0], mine[4]):
        case Match(name=name):
            assert name == str(mine[0])
        case outcome:
            pytest.fail(f"{outcome}")
    assert isinstance(device.verify_pair(mine[0], other[0]), Unknown)
    assert device.gallery.model_id is None
    assert not (tmp_path / "home" / "models").exists()


def test_a_pair_without_a_face_says_which_picture(tmp_path: Path) -> None:
    from PIL import Image

    blank = tmp_path / "blank.png"
    Image.new("RGB", (64, 64)).save(blank)
    outcome = verify_pair(images_of(OWNER)[0], blank, options=OPTIONS)
    assert isinstance(outcome, NoFace)
    assert outcome.message.startswith(f"{blank}: no face found")
