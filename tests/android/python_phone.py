"""A phone of Python as a process, for another machine's Python: joins, enrols photographs, takes part in one round.

python_phone.py HOME INVITE SENT PHOTOGRAPH...: graphs lie in HOME. What it sends, before any mask, is written to SENT.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from device_sdk.device import Device
from device_sdk.rounds.events import Event, Transfer


def main(home: str, invite: str, sent: str, *photographs: str) -> None:
    """Take part once; fails where it was not counted."""
    options = {
        "keystore": "file",
        "runtime": "onnxruntime",
        "participation.min_cohort": 3,
        "participation.allow_reveal": ("class_moment",),
    }

    def tell(event: Event | Transfer) -> None:
        if isinstance(event, Event) and event.kind == "uploading":
            pending = device.gallery.pending()
            assert pending is not None
            Path(sent).write_bytes(pending.contribution)

    device = Device.open(Path(home), options=options, tell=tell)
    with device:
        device.join(invite)
        device.enroll("Owner", [Path(photograph) for photograph in photographs], consent=True)
        (outcome,) = device.participate(rounds=1)
        sys.stdout.write(f"{platform.machine()} {outcome.num_reports} phones\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
