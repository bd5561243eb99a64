"""Enrol a person from photographs, and ask of other pictures whether they show the same person.

Run: python examples/enrol_and_verify.py NAME PHOTOS PICTURE..., with the folder of the person's photographs (three
usable ones or more), and the pictures to ask about. An invite, as `mien-coordinator device invite` prints it, may stand
before the name: then the model is the one that this fleet released.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from device_sdk import Device, Match, Outcome, Unknown


def enrol_and_verify(
    device: Device, name: str, photos: Path, pictures: Sequence[Path], *, invite: str = ""
) -> dict[Path, Outcome]:
    """Return what the device says of each picture; nothing leaves it, as the person is not asked to train a model."""
    if invite:
        device.join(invite)  # at the registrar that the invite names; safe to repeat
    if name not in [person.name for person in device.people()]:
        device.enroll(name, photos, consent=False)  # in a fleet the first time fetches the released model
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


def main(name: str, photos: str, *pictures: str, invite: str = "") -> None:
    """Print what the device in the folder `phone` says of each picture."""
    with Device.open("phone") as device:
        found = enrol_and_verify(device, name, Path(photos), [*map(Path, pictures)], invite=invite)
        for picture, outcome in found.items():
            print(f"{picture}: {in_words(name, outcome)}")


if __name__ == "__main__":
    has_invite = sys.argv[1:2] != [] and sys.argv[1].startswith("mien://")
    words = sys.argv[2:] if has_invite else sys.argv[1:]
    if len(words) < 3:
        sys.exit(__doc__)
    main(*words, invite=sys.argv[1] if has_invite else "")
