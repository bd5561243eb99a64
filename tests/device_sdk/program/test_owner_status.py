"""What an owner is told of their device: who is enrolled, what it took part in, what to do; no developer's words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_sdk.device import Device
from device_sdk.people.enrolled import LastRound
from device_sdk.program.cli import app
from device_sdk.program.owner_status import sentences
from device_sdk.status import DeviceStatus
from mien.errors import CorruptDataError
from tests.device_sdk.made_up_people import noise_crops, template_of

NOW = 1_800_000_000
FRESH = DeviceStatus("/home", "file", *(None,) * 6, 0, 0, None, 0, True, False, None, None)
SETTLED = dataclasses.replace(
    FRESH,
    device_id="d" * 32,
    population="default",
    coordinator="example:7441",
    certificate_ends="2028-01-01T00:00:00+00:00",
    model_id="a" * 64,
    backbone="sface",
    tier="int8",
    num_people=2,
    num_agreed=1,
    num_private_sums=3,
    last_round_unix_s=NOW - 7200,
    last_round_counted=True,
)


def told(status: DeviceStatus) -> str:
    return "\n".join(f"{name}: {sentence}" for name, sentence in sentences(status, NOW))


def test_a_new_device_is_told_what_to_do_first() -> None:
    text = told(FRESH)
    assert "belongs to no fleet" in text
    assert "Nobody is enrolled" in text
    assert text.index("mien-device enroll") < text.index("mien-device join")


def test_a_settled_device_is_told_how_it_stands_and_has_nothing_to_do() -> None:
    text = told(SETTLED)
    parts = ["2 people are enrolled; 1 agreed", "sface aaaaaaaaaaaa in int8", "2 h ago", "in the shared model's sum"]
    for part in [*parts, "Masked updates for 3 sums", "Whenever `mien-device participate` runs"]:
        assert part in text
    assert "to do" not in text


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"certificate_ends": "2027-01-16T00:00:00+00:00", "renewal_is_due": True}, "ends soon"),
        ({"certificate_ends": "2027-01-01T00:00:00+00:00"}, "has ended"),
        ({"num_agreed": 0}, "None until somebody here agrees: mien-device gallery consent NAME --give"),
        ({"lacks_threshold": "a lacks one; ask"}, "Nobody is recognised without a threshold: a lacks one; ask."),
        ({"revoked_unix_s": NOW}, "refused as revoked on"),
        ({"revoked_unix_s": NOW}, "another --home and gallery import FILE there"),
        ({"pending_round": "t/1/1"}, "so that what was trained counts"),
        ({"asked_to_stay_out": True}, "leave this device out"),
        ({"last_round_counted": False}, "went on without it"),
        ({"last_round_unix_s": None}, "Not yet"),
        ({"num_private_sums": 0}, "No masked update"),
        ({"used_up_model": "ab" * 32}, "looks for devices for another model than abababababab: over that one the same"),
        ({"takes_unsigned_releases": True}, "Its releases are not signed: whoever has the coordinator"),
        ({"keystore": "platform"}, "operating system's key store"),
        ({"threshold_by_hand": 0.3}, "0.300 (verification.threshold): it is right for int8 only if it was measured"),
        ({"measures_models": False}, "does not measure new models"),
        ({"personal_model": "released"}, "int8, with a personal model for the people here."),
        ({"personal_model_is_stale": True}, "mien-device personalise fits the personal model again"),
    ],
)
def test_what_differs_is_said(changes: dict[str, object], part: str) -> None:
    assert part in told(dataclasses.replace(SETTLED, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_out", [True, False])
def test_whoever_does_not_agree_to_training_is_not_urged_to(is_out: bool) -> None:
    nobody = dataclasses.replace(SETTLED, num_agreed=0, asked_to_stay_out=is_out)
    assert "to do" not in told(nobody)
    assert ("--give" in told(nobody)) is not is_out


def test_the_last_round_is_kept_sealed_with_the_gallery(tmp_path: Path) -> None:
    with Device.open(tmp_path, options={"keystore": "file"}) as device:
        crops = noise_crops(1)
        device.gallery.enroll("Ada", crops, template_of(crops), now_unix_s=0, consent=True)
        assert device.status().last_round_unix_s is None
        device.gallery.note_round(LastRound(NOW, counted=False, peers="Of 20 phones, 18 counted."))
    with Device.open(tmp_path, options={"keystore": "file"}) as device:
        assert (device.status().last_round_unix_s, device.status().last_round_counted) == (NOW, False)
        assert device.status().last_round_peers == "Of 20 phones, 18 counted."
    shown = CliRunner().invoke(app, ["status", "--home", str(tmp_path)])
    assert shown.exit_code == 0
    assert "1 person is enrolled; 1 agreed" in " ".join(shown.stdout.split())
    assert "pending round" not in shown.stdout
    assert "Of 20 phones, 18 counted." in " ".join(shown.stdout.split())
    with pytest.raises(CorruptDataError, match="last round"):
        LastRound.from_text('{"unix_s": "x"}')


def test_a_model_says_whom_it_was_not_measured_on() -> None:
    assert "measured on" not in told(FRESH)
    plain = told(dataclasses.replace(SETTLED, never_measured=("children up to 12 years", "twins")))
    assert "measured on: No group of people was measured by itself. Nobody measured, so do not rely on it for:" in plain
    assert "children up to 12 years; twins." in plain
    groups = ("age 0-12", "age 20-39")
    by_group = told(dataclasses.replace(SETTLED, groups_measured=groups, groups_above_rate=groups[:1]))
    assert (
        "measured on: By groups of people: age 0-12, age 20-39. Do not rely on it for age 0-12: strangers" in by_group
    )
