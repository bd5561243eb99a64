"""What the lanes of one task share: its record, which they write in turns, and who of them may gather devices.

A task that runs one round after another has one lane, for which none of this makes a difference. In asynchronous mode
each cohort in flight has a lane; the rules are `mien.buffered`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from coordinator.rounds.closing_io import Closed, Closer, Offered
from coordinator.rounds.machine import Event, RoundState, Stage, Step, TimePassed
from coordinator.rounds.pulse import Pulse
from coordinator.store.records import RoundRecord, TaskRecord, TaskState
from mien.buffered import Flight, is_overdue, may_open, overdue_in_words
from mien.specs import TaskSpec


class Lane(Protocol):
    """Where one cohort at a time of a task is led from its first device to its sum."""

    round: RoundRecord | None
    state: RoundState | None

    def tell(self, event: Event) -> None:
        """Hand an event over without waiting."""
        ...


class SharedTask:
    """One task as its lanes see it. Whoever holds `turn` may change the record, and nobody else."""

    def __init__(self, record: TaskRecord, spec: TaskSpec, closer: Closer) -> None:
        self.turn = asyncio.Lock()
        self.closer = closer
        self.last_number = 0
        self._record, self._spec = record, spec
        self._lanes: list[Lane] = []
        self._changed = Pulse()
        self._awaits_verdict = False

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
            self._changed.beat()
            for lane in self._lanes:  # whose cohort may be overdue now, or not wanted any more
                lane.tell(TimePassed())

    def await_verdict(self, awaits: bool) -> None:
        """Say whether a candidate waits for the gates: no step is taken then, also while the task is paused."""
        self._awaits_verdict = awaits
        self._changed.beat()

    @property
    def _is_held(self) -> bool:
        """Whether the newest model may not be followed yet."""
        state = self._record.state
        return not state.is_over and (self._awaits_verdict or state is TaskState.CHECKING)

    def join(self, lane: Lane) -> None:
        """Take a lane in."""
        self._lanes.append(lane)

    def may_open(self, lane: Lane) -> bool:
        """Return whether a lane without a cohort may gather one."""
        if not self.is_asynchronous:
            return True
        flights = [_flight(record, state) for record, state in self._under_way(but=lane)]
        return may_open(self._spec, self._record.rounds_closed, flights)

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
        number = self._record.rounds_closed + 1
        return number, last.attempt + 1 if last is not None and last.round == number else 1

    def why_given_up(self, lane: Lane) -> str:
        """Return why a lane's cohort does not go on, where other lanes or an operator brought that about."""
        if not self.is_asynchronous or lane.round is None or lane.state is None or lane.state.stage.is_over:
            return ""
        task, spec = self._record, self._spec.asynchronous
        assert spec is not None
        is_unwanted = task.state is not TaskState.RUNNING if lane.state.stage is Stage.SELECTING else task.state.is_over
        if is_unwanted:
            return f"task {task.state} {task.reason}".rstrip()
        if lane.state.stage is Stage.SELECTING:
            return ""
        version, base = task.rounds_closed, lane.round.base_version
        return overdue_in_words(spec, version, base) if is_overdue(spec, version, base) else ""

    def is_overtaken(self, closed: Closed | Offered) -> bool:
        """Return whether a step was taken on a model that is not the newest any more, or may not be followed yet."""
        if not self.is_asynchronous or isinstance(closed, Offered):
            return False
        is_behind = closed.state.rounds != self._record.rounds_closed + 1
        return is_behind or self._is_held

    @contextlib.asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """Hold the turn while a step is taken on the newest model, and begin none while gates judge that.

        Only one step at a time, so that none removes the state that another has just laid down.
        """
        if not self.is_asynchronous:
            yield
            return
        while True:
            count = self._changed.count
            if not self._is_held:
                break
            await self._changed.after(count)
        async with self.turn:
            yield

    def _under_way(self, *, but: Lane) -> list[tuple[RoundRecord, RoundState]]:
        found = [(lane.round, lane.state) for lane in self._lanes if lane is not but]
        return [(record, state) for record, state in found if record and state and not state.stage.is_over]


def _flight(record: RoundRecord, state: RoundState) -> Flight:
    return Flight(record.round, None if state.stage is Stage.SELECTING else record.base_version)
