"""What the lanes of one task share: its record, which they write in turns, and who of them may gather devices.

A task that runs one round after another has one lane, for which none of this makes a difference. In asynchronous mode
each cohort in flight has a lane; who may do what is decided in `lane_rules`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from coordinator.rounds.closing_io import Closed, Closer, Offered
from coordinator.rounds.pulse import Pulse
from mien.rounds.cohort_rules import LaneRules
from mien.rounds.records import TaskRecord, TaskState
from mien.specs import TaskSpec


class SharedTask(LaneRules):
    """One task as its lanes see it. Whoever holds `turn` may change the record, and nobody else."""

    def __init__(self, record: TaskRecord, spec: TaskSpec, closer: Closer) -> None:
        super().__init__(record, spec)
        self.turn = asyncio.Lock()
        self.closer = closer
        self._changed = Pulse()
        self._awaits_verdict = False

    def has_changed(self) -> None:
        """Have steps that wait for the gates look again."""
        self._changed.beat()

    def await_verdict(self, awaits: bool) -> None:
        """Say whether a candidate waits for the gates: no step is taken then, also while the task is paused."""
        self._awaits_verdict = awaits
        self._changed.beat()

    @property
    def _is_held(self) -> bool:
        """Whether the newest model may not be followed yet."""
        state = self._record.state
        return not state.is_over and (self._awaits_verdict or state is TaskState.CHECKING)

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
