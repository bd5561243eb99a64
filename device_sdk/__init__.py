"""Mien on a device: `Device` enrols people, verifies and identifies them; in a fleet it takes part in training.

::

    verify_pair("a.jpg", "b.jpg")  # a Match, or not: with the recogniser that comes with this package

    with Device.open("~/.local/share/mien/device") as device:
        device.enroll("Ada", "photos/ada", consent=True)
        match device.verify("Ada", "door.jpg"):
            case Match(name=name): ...
            case Unknown(): ...
            case NoFace() | MultipleFaces() | LowQuality(): ...
        device.join("mien://join?...")  # whoever is enrolled stays
        for outcome in device.participate(rounds=3): ...

Whatever it raises on purpose is one of `errors`: catch `errors.NotEnrolledError`, or `errors.MienError` for all.
Importing this package is cheap: its names are loaded when they are first used, and torch only to embed or train.
It speaks TLS 1.3 only, which has to be settled before gRPC is loaded; so it is settled here, as is what gRPC logs, and
that ONNX Runtime reports nothing to its maker.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from mien import errors
from mien._door import door
from mien.shell.tls import refuse_tls12

if TYPE_CHECKING:
    from device_sdk.device import Device, ModelUpdate, verify_pair
    from device_sdk.faces.images import Frame
    from device_sdk.people.enroll import Enrollment, RefusedImage
    from device_sdk.people.enrolled import Person
    from device_sdk.people.liveness import PadCheck
    from device_sdk.people.personal import Personalised
    from device_sdk.people.recogniser import Operating
    from device_sdk.people.verify import LowQuality, Match, MultipleFaces, NoFace, Outcome, PresentationAttack, Unknown
    from device_sdk.rounds.conditions import Conditions, StatedConditions, SystemConditions
    from device_sdk.rounds.events import Event, Transfer
    from device_sdk.rounds.participate import Counted, NotCounted
    from device_sdk.server.identity import Identity
    from device_sdk.status import DeviceStatus
    from mien.protocol.rounds import Wait

__all__ = [
    "Conditions",
    "Counted",
    "Device",
    "DeviceStatus",
    "Enrollment",
    "Event",
    "Frame",
    "Identity",
    "LowQuality",
    "Match",
    "ModelUpdate",
    "MultipleFaces",
    "NoFace",
    "NotCounted",
    "Operating",
    "Outcome",
    "PadCheck",
    "Person",
    "Personalised",
    "PresentationAttack",
    "RefusedImage",
    "StatedConditions",
    "SystemConditions",
    "Transfer",
    "Unknown",
    "Wait",
    "errors",
    "verify_pair",
]

refuse_tls12()
# gRPC's own notes, such as every failed handshake, would stand beside our sentence on it; set it to INFO to see them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Official builds of ONNX Runtime number the device and tell Microsoft what they run, unless they are told not to before
# they are loaded.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

_HOME_OF: Final = {
    "Wait": "server.client",
    **dict.fromkeys(("Device", "ModelUpdate", "verify_pair"), "device"),
    "DeviceStatus": "status",
    "Frame": "faces.images",
    **dict.fromkeys(("Enrollment", "RefusedImage"), "people.enroll"),
    "Person": "people.enrolled",
    "Identity": "server.identity",
    **dict.fromkeys(("Conditions", "StatedConditions", "SystemConditions"), "rounds.conditions"),
    **dict.fromkeys(("Event", "Transfer"), "rounds.events"),
    **dict.fromkeys(("Counted", "NotCounted"), "rounds.participate"),
    "PadCheck": "people.liveness",
    "Personalised": "people.personal",
    "Operating": "people.recogniser",
    **dict.fromkeys(
        ("LowQuality", "Match", "MultipleFaces", "NoFace", "Outcome", "PresentationAttack", "Unknown"), "people.verify"
    ),
}

__getattr__, _ = door(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
