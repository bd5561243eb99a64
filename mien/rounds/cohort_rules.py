"""Which lane of a task may gather devices, whom it may ask, and when it gives its cohort up: decisions without I/O.

The coordinator's lanes and the simulator's fleet decide by these alone. A task that runs one round after another has
one lane, for which most of this makes no difference; in asynchronous mode the rules are `mien.rounds.buffered`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from mien.protocol.rounds import Stage
from mien.rounds.buffered import Flight, is_overdue, may_open, overdue_in_words
from mien.rounds.machine import Event, RoundState, Step, TimePassed
from mien.rounds.records import RoundRecord, TaskRecord, TaskState
from mien.specs import TaskSpec


class Lane(Protocol):
    """Where one cohort at a time of a task is led from its first device to its sum."""

    round: RoundRecord | None
    state: RoundState | None

    def tell(self, event: Event) -> None:
        """Hand an event over without waiting."""
        ...


class LaneRules:
    """One task as its lanes see it; `last_number` is that of the newest round or cohort."""

    def __init__(self, record: TaskRecord, spec: TaskSpec) -> None:
        self.last_number = 0
        self.lanes: list[Lane] = []
        self._record, self._spec = record, spec

    @property
    def is_asynchronous(self) -> bool:
        """Whether several cohorts may be in flight."""
        return self._spec.asynchronous is not None

    @property
    def record(self) -> TaskRecord:
        """The task as it was last committed."""
        return self._record

    @record.setter
    def record(self, record: TaskRecord) -> None:
        has_changed, self._record = record != self._record, record
        if has_changed and self.is_asynchronous:
            self.has_changed()
            for lane in self.lanes:  # whose cohort may be overdue now, or not wanted any more
                lane.tell(TimePassed())

    def has_changed(self) -> None:
        """Hear that the record of an asynchronous task has changed."""

    def join(self, lane: Lane) -> None:
        """Take a lane in."""
        self.lanes.append(lane)

    def wants_devices(self, lane: Lane) -> bool:
        """Return whether a device that checks in with a lane now could be chosen."""
        if self.record.state is not TaskState.RUNNING:
            return False
        if lane.state is None or lane.state.stage.is_over:
            return self.may_open(lane)
        return lane.state.stage is Stage.SELECTING

    def may_open(self, lane: Lane) -> bool:
        """Return whether a lane without a cohort may gather one."""
        if not self.is_asynchronous:
            return True
        flights = [_flight(record, state) for record, state in self._under_way(but=lane)]
        return may_open(self._spec, self.record.rounds_closed, flights)

    def is_busy(self, device_id: str, lane: Lane) -> bool:
        """Return whether a device takes part in a cohort of another lane: a phone is in one of them at a time."""
        if not self.is_asynchronous:
            return False
        steps = (state.participants.get(device_id, Step.LEFT) for _, state in self._under_way(but=lane))
        return any(step not in (Step.LATE, Step.LEFT) for step in steps)

    def next_attempt(self, last: RoundRecord | None) -> tuple[int, int]:
        """Return the round and attempt that come next in a lane; in asynchronous mode every cohort has a number."""
        if self.is_asynchronous:
            return self.last_number + 1, 1
        number = self.record.rounds_closed + 1
        return number, last.attempt + 1 if last is not None and last.round == number else 1

    def based_on_newest(self, record: RoundRecord) -> RoundRecord:
        """Return a round whose devices have just been chosen.

        Other cohorts may have made models since it began to gather: its devices get the newest.
        """
        return replace(record, base_model_id=self.record.model_id, base_version=self.record.rounds_closed)

    def why_given_up(self, lane: Lane) -> str:
        """Return why a lane's cohort does not go on, where other lanes or an operator brought that about."""
        if not self.is_asynchronous or lane.round is None or lane.state is None or lane.state.stage.is_over:
            return ""
        task, spec = self.record, self._spec.asynchronous
        assert spec is not None
        is_unwanted = task.state is not TaskState.RUNNING if lane.state.stage is Stage.SELECTING else task.state.is_over
        if is_unwanted:
            return f"task {task.state} {task.reason}".rstrip()
        if lane.state.stage is Stage.SELECTING:
            return ""
        version, base = task.rounds_closed, lane.round.base_version
        return overdue_in_words(spec, version, base) if is_overdue(spec, version, base) else ""

    def _under_way(self, *, but: Lane) -> list[tuple[RoundRecord, RoundState]]:
        found = [(lane.round, lane.state) for lane in self.lanes if lane is not but]
        return [(record, state) for record, state in found if record and state and not state.stage.is_over]


def _flight(record: RoundRecord, state: RoundState) -> Flight:
    return Flight(record.round, None if state.stage is Stage.SELECTING else record.base_version)
