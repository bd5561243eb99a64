"""Enrol a person from photographs, and ask of other pictures whether they show the same person.

Run: python examples/enrol_and_verify.py INVITE NAME PHOTOS PICTURE..., with an invite that `mien-coordinator device
invite` printed, the folder of the person's photographs (three usable ones or more), and the pictures to ask about.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from device_sdk import Device, Match, Outcome, Unknown


def enrol_and_verify(
    device: Device, invite: str, name: str, photos: Path, pictures: Sequence[Path]
) -> dict[Path, Outcome]:
    """Return what the device says of each picture; nothing leaves it, as the person is not asked to train a model."""
    device.join(invite)  # at the registrar that the invite names; safe to repeat
    device.enroll(name, photos, consent=False)  # the first time, this fetches the released model
    return {picture: device.verify(name, picture) for picture in pictures}


def in_words(name: str, outcome: Outcome) -> str:
    """Return an outcome as a sentence: every kind has its own, and only `Match` lets anybody in."""
    match outcome:
        case Match():
            return f"this is {name}"
        case Unknown():
            return f"a good face, but not {name}'s"
        case _:
            return outcome.message  # no face, several, one that is too blurred or small: what to do


def main(invite: str, name: str, photos: str, *pictures: str) -> None:
    """Print what the device in the folder `phone` says of each picture."""
    with Device.open("phone") as device:
        for picture, outcome in enrol_and_verify(device, invite, name, Path(photos), [*map(Path, pictures)]).items():
            print(f"{picture}: {in_words(name, outcome)}")


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
