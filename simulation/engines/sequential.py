"""The reference engine: one client after another, the same method halves and the same runtime as on real phones.

Other engines must equal it to float tolerance; it is short enough to check by eye.
"""

from __future__ import annotations

from dataclasses import replace

from mien.layout import Vector
from mien.methods.base import Runtime
from simulation.engines.base import Intake, RoundResult, RoundWork, named_client


class SequentialEngine:
    """Runs one device after another on `runtime`."""

    name = "sequential"

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def train(self, work: RoundWork) -> RoundResult:
        """Return the result of devices on the server's state, one after another."""
        work = on_read_only_model(work)
        intake = Intake(work)
        for device in work.devices:
            with named_client(device):
                intake.take(device, work.method.device_round(work.device_input(device), self.runtime))
        return intake.result()


def on_read_only_model(work: RoundWork) -> RoundWork:
    """Return the work on the same parameters where nobody can write to them, so that a runtime may keep them loaded."""
    return replace(work, state=replace(work.state, theta=_read_only(work.state.theta)))


def _read_only(theta: Vector) -> Vector:
    view = theta.view()
    view.flags.writeable = False
    return view
