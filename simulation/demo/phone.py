"""One phone of the demo, from its invite to its part in a round: `python -m simulation.demo.phone PLAN`.

What an app does with the package: one process that lives on, loads the recogniser once and embeds each picture once,
with ONNX Runtime and the graphs that come with the signed release. Its log says what left it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from device_sdk import Device
from device_sdk.rounds.events import Event, Transfer
from mien.errors import MienError, NotFoundError
from mien.shell import cli
from mien.shell.files import create_private, read_private
from mien.shell.memory import refuse_core_dumps

RELEASE_S: Final = 300.0
POLL_S: Final = 2.0


@dataclass(frozen=True)
class PhonePlan:
    """A phone's home, its invite, the pictures of the people on it, and its owner's settings by dotted name."""

    home: str
    invite: str = field(repr=False)
    people: Mapping[str, list[str]]
    options: Mapping[str, Any]

    def write(self, path: Path) -> None:
        """Write the plan for nobody but this user: the invite lets a phone in."""
        create_private(path, json.dumps(dataclasses.asdict(self)).encode())

    @classmethod
    def read(cls, path: Path) -> PhonePlan:
        """Return a plan that was written."""
        return cls(**json.loads(read_private(path, what="the phone's plan")))


def live(plan: PhonePlan) -> None:
    """Join, wait for the first release, enrol everybody, and take part until this process is ended."""
    with Device.open(plan.home, options=plan.options, warn=_say, tell=_tell) as device:
        device.join(plan.invite)
        _say("This phone has joined.")
        _wait_for_release(device)
        for name, pictures in plan.people.items():
            taken = device.enroll(name, pictures, consent=True)
            _say(f"{name} is enrolled from {taken.num_used} pictures.")
        for _outcome in device.participate():
            pass


def _wait_for_release(device: Device) -> None:
    deadline = time.monotonic() + RELEASE_S
    while True:
        try:
            device.update()
        except NotFoundError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return


def _tell(event: Event | Transfer) -> None:
    if isinstance(event, Event) and event.kind != "progress":
        _say(event.text)


def _say(text: str) -> None:
    cli.ERR.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    refuse_core_dumps()
    try:
        live(PhonePlan.read(Path(sys.argv[1])))
    except MienError as error:
        cli.fail(error)
