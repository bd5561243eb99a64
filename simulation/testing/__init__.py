"""Fakes to test against: real servers and real connections, with devices that have neither faces nor training.

Somebody who writes a method, a program for operators or a phone's client runs a round in a second or two::

    with FakeFleet(tmp_path) as fleet:
        async with fleet.operator() as operator, fleet.devices("people", 4) as devices:
            await fleet.release_tiny_model(operator)
            task = await operator.submit(tiny_task("first", "people"), "first")
            await asyncio.gather(*(each.take_part(lambda task, _: contribution(task, 1)) for each in devices))

Every model here is the tiny one, `SPEC`. All failures are a MienError of the coordinator's, a TimeoutError of a step
that took longer than `STEP_LIMIT_S`, or an AssertionError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mien._door import door

if TYPE_CHECKING:
    from simulation.testing.device import (
        DeviceCredentials,
        FakeDevice,
        FakePart,
        Sent,
        answer,
        patiently,
        ref_of,
    )
    from simulation.testing.fleet import FakeFleet
    from simulation.testing.ports import free_port
    from simulation.testing.tiny import (
        LAYOUT,
        SHORT_S,
        SPEC,
        STEP_LIMIT_S,
        THETA,
        contribution,
        layout_of,
        masked_task,
        running_out,
        tiny_task,
    )

__all__ = [
    "LAYOUT",
    "SHORT_S",
    "SPEC",
    "STEP_LIMIT_S",
    "THETA",
    "DeviceCredentials",
    "FakeDevice",
    "FakeFleet",
    "FakePart",
    "Sent",
    "answer",
    "contribution",
    "free_port",
    "layout_of",
    "masked_task",
    "patiently",
    "ref_of",
    "running_out",
    "tiny_task",
]

_HOMES: Final = {
    **dict.fromkeys(("DeviceCredentials", "FakeDevice", "FakePart", "Sent", "answer", "patiently", "ref_of"), "device"),
    "FakeFleet": "fleet",
    "free_port": "ports",
    **dict.fromkeys(("LAYOUT", "SHORT_S", "SPEC", "STEP_LIMIT_S", "THETA"), "tiny"),
    **dict.fromkeys(("contribution", "layout_of", "masked_task", "running_out", "tiny_task"), "tiny"),
}

__getattr__, __dir__ = door(__name__, _HOMES)
