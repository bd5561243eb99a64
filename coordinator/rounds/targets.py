"""What an upload needs of the round that it belongs to, whoever runs that round: this process or another replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mien.protocol.rounds import RoundRef
    from mien.rounds.machine import Left, RoundState, Step, Uploaded
    from mien.rounds.plan import TaskPlan
    from mien.rounds.records import RoundRecord, StepRecord


class UploadTarget(Protocol):
    """One attempt that takes uploads; a `coordinator.rounds.runner.TaskRunner` is one."""

    @property
    def state(self) -> RoundState | None:
        """Where the attempt is."""

    @property
    def plan(self) -> TaskPlan:
        """What its task means for its devices."""

    @property
    def upload_bytes(self) -> int:
        """Length of a contribution on the wire."""

    def is_current(self, round_id: int) -> bool:
        """Return whether an attempt is this one, and goes on."""

    def step_of(self, device_id: str) -> Step | None:
        """Return how far a device got."""

    async def post(self, event: Uploaded | Left, *, round_id: int, step: StepRecord | None = None) -> None:
        """Return once what happened to an upload is committed; raises what the round refuses."""


class UploadDesk(Protocol):
    """Finds the attempts that uploads belong to; a `coordinator.rounds.engine.Engine` is one."""

    async def locate_upload(self, device_id: str, name: RoundRef) -> tuple[UploadTarget | None, RoundRecord]:
        """Return the attempt that takes a device's upload, None where it is an old one, and its record."""
