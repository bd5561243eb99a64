"""The coordinator as the fleet meets it: lanes that are led by the state machine, on a clock that the fleet moves.

No decision is made here. When a round opens and who may be asked is `mien.rounds.cohort_rules`, what an event does
`mien.rounds.machine`, what a round's end makes of its task `mien.rounds.verdicts`, whether a private sum
goes on `mien.secagg.quorum`. What the real runner (`coordinator/rounds/runner.py`) adds is storage, which a fleet has
none of. Gates are taken to pass a candidate at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from mien.errors import MienError
from mien.protocol.rounds import Role, Stage
from mien.rounds import verdicts
from mien.rounds.cohort_rules import LaneRules
from mien.rounds.machine import (
    MASKED,
    Cancelled,
    CheckedIn,
    Dropped,
    Effect,
    Event,
    Left,
    RoundRules,
    RoundState,
    Stepped,
    SumFailed,
    Summed,
    SumWanted,
    TimePassed,
    Trained,
    Transition,
    Uploaded,
    Withdrew,
    advance,
    open_round,
    wakes_at,
)
from mien.rounds.records import RoundRecord, TaskRecord, TaskState
from mien.specs import TaskSpec
from simulation.fleet.masking import EmulatedSums

TASK_ID: Final = "f1ee70000000000f"
_NO_SHARES: Final = "a secret lacks shares; nothing was opened, the round is repeated"


@dataclass
class DeskLane:
    """One cohort at a time."""

    desk: Desk
    index: int
    round: RoundRecord | None = None
    state: RoundState | None = None
    rules: RoundRules | None = None
    sums: EmulatedSums | None = None
    closing_until_s: float = math.inf

    def tell(self, event: Event) -> None:
        """Hand an event over without waiting."""
        self.desk.told.append((self, event))

    @property
    def is_under_way(self) -> bool:
        """Whether an attempt is open."""
        return self.state is not None and not self.state.stage.is_over


@dataclass(frozen=True)
class Change:
    """What one step made of a lane: the attempt's states before and after it, and what there is to carry out."""

    lane: DeskLane
    before: RoundState
    after: RoundState
    effects: tuple[Effect, ...] = field(repr=False)


class Listener(Protocol):
    """Hears of all that happens, after it has happened."""

    def changed(self, change: Change, now: float) -> None:
        """Hear of a step of an attempt."""
        ...


class Desk:
    """One task's coordinator. Every call names the time, which never goes back."""

    def __init__(
        self, task: TaskSpec, listener: Listener, *, max_aborted: int, closing_s: float, task_id: str = TASK_ID
    ) -> None:
        self.task, self._listener = task, listener
        self._max_aborted, self._closing_s = max_aborted, closing_s
        record = TaskRecord(task_id, task.name, task.population, b"", "", TaskState.RUNNING, "", "", "", 0)
        self._rules = LaneRules(record, task)
        count = 1 if task.asynchronous is None else task.asynchronous.max_concurrency
        self.lanes = tuple(DeskLane(self, index) for index in range(count))
        for lane in self.lanes:
            self._rules.join(lane)
        self.told = deque[tuple[DeskLane, Event]]()
        self._num_rounds = 0
        self._steps_free_s = -math.inf

    @property
    def record(self) -> TaskRecord:
        """The task as it is now."""
        return self._rules.record

    # What phones ask

    def lane_for(self, device: str) -> DeskLane | None:
        """Return the first lane that a device which checks in is offered to, as `Engine.check_in` does."""
        for lane in self.lanes:
            if self._rules.wants_devices(lane) and not self._rules.is_busy(device, lane):
                return lane
        return None

    @property
    def wants_devices(self) -> bool:
        """Whether any device that checks in now could be chosen."""
        return any(self._rules.wants_devices(lane) for lane in self.lanes)

    def check_in(self, lane: DeskLane, devices: Iterable[str], now: float) -> None:
        """Offer devices to a lane, all at once; the first ones open an attempt."""
        if not self._rules.wants_devices(lane):
            return
        if not lane.is_under_way:
            self._open(lane, now)
        idle = frozenset(device for device in devices if not self._rules.is_busy(device, lane))
        self._handle(lane, [CheckedIn(idle)], now)

    def withdraw(self, lane: DeskLane, device: str, now: float) -> None:
        """Hear that a candidate hung up."""
        self._handle(lane, [Withdrew(device)], now)

    def trained(self, lane: DeskLane, device: str, now: float) -> None:
        """Hear that a device has trained."""
        self._handle(lane, [Trained(device)], now)

    def stepped(self, lane: DeskLane, device: str, stage: Stage, now: float) -> None:
        """Hear that a device did its part of a stage after training."""
        self._handle(lane, [Uploaded(device) if stage is Stage.UPLOAD else Stepped(device, stage)], now)

    def left(self, lane: DeskLane, device: str, error_code: str, now: float) -> None:
        """Hear that a device gave up."""
        self._handle(lane, [Left(device, error_code)], now)

    # What time does

    def wakes_s(self, lane: DeskLane, now: float) -> float:
        """Return when time alone moves a lane next; infinity for never."""
        if lane.state is None or lane.rules is None:
            return math.inf
        if lane.state.stage is Stage.CLOSING:
            return lane.closing_until_s
        return wakes_at(lane.rules, lane.state, now)

    def time_passed(self, lane: DeskLane, now: float) -> None:
        """Move a lane on whose time has come."""
        if lane.state is not None and lane.state.stage is Stage.CLOSING:
            if now >= lane.closing_until_s:
                can_open = lane.sums is None or lane.sums.can_open
                self._handle(lane, [Summed() if can_open else SumFailed(_NO_SHARES)], now)
            return
        self._handle(lane, [TimePassed()], now)

    def resume(self) -> None:
        """Have a paused task go on, as an operator does."""
        self._rules.record = replace(self.record, state=TaskState.RUNNING, reason="", aborted_in_a_row=0)

    # How a lane is led: `TaskRunner` without its store

    def _open(self, lane: DeskLane, now: float) -> None:
        number, attempt = self._rules.next_attempt(lane.round)
        self._num_rounds += 1
        lane.rules = RoundRules.of(self.task, task_id=self.record.task_id, round_number=number, attempt=attempt)
        lane.state, _ = open_round(lane.rules, now)
        lane.round = RoundRecord(
            self._num_rounds, self.record.task_id, number, attempt, lane.state.stage, None, "", round(now * 1000)
        )
        lane.sums, lane.closing_until_s = None, math.inf
        self._rules.last_number = number

    def _handle(self, lane: DeskLane, events: Sequence[Event], now: float) -> None:
        self._step(lane, events, now)
        while self.told:
            other, event = self.told.popleft()
            self._step(other, [event], now)

    def _step(self, lane: DeskLane, events: Sequence[Event], now: float) -> None:
        if reason := self._rules.why_given_up(lane):
            events = [Cancelled(reason), *events]
        if lane.state is None or lane.rules is None or lane.round is None:
            return
        before, effects = lane.state, list[Effect]()
        for event in events:
            try:
                lane.state, more = self._advance(lane, lane.state, event, now)
            except MienError:  # what the device is told, and knows from its own side here
                continue
            effects.extend(more)
        after = lane.state
        if before.stage is Stage.SELECTING and after.stage is Stage.TRAINING:
            lane.round = self._rules.based_on_newest(lane.round)
        if any(isinstance(effect, SumWanted) for effect in effects):
            self._steps_free_s = max(self._steps_free_s, now) + self._closing_s  # one step at a time
            lane.closing_until_s = self._steps_free_s
        if after.stage.is_over and not before.stage.is_over:
            self._ended(after, events, now)
        if before is not after or effects:
            self._listener.changed(Change(lane, before, after, tuple(effects)), now)

    def _ended(self, state: RoundState, events: Sequence[Event], now: float) -> None:
        if state.stage is Stage.CLOSED:
            task = replace(self.record, rounds_closed=self.record.rounds_closed + 1, aborted_in_a_row=0)
            self._rules.record = verdicts.after_round(self.task, task, None, round(now * 1000))
        elif not any(isinstance(event, Cancelled) for event in events):
            after = verdicts.after_abort(self.record, state.reason, duty=Role.TRAIN, max_aborted=self._max_aborted)
            self._rules.record = after

    def _advance(self, lane: DeskLane, state: RoundState, event: Event, now: float) -> Transition:
        """Return the state after one event, the stages of the sum that it ends ended (`Masking.take`, `.follow`)."""
        assert lane.rules is not None
        after = advance(lane.rules, state, event, now)
        if lane.sums is not None and isinstance(event, Stepped | Uploaded) and after[0] is not state:
            stage = Stage.UPLOAD if isinstance(event, Uploaded) else event.stage
            lane.sums.accept(event.device_id, stage)
            if stage is Stage.UNMASK and lane.sums.can_open:
                after = advance(lane.rules, state, Stepped(event.device_id, stage, is_enough=True), now)
        return self._follow(lane, after, now)

    def _follow(self, lane: DeskLane, transition: Transition, now: float) -> Transition:
        state, effects = transition
        assert lane.rules is not None
        if state.stage is Stage.KEYS and lane.sums is None:
            lane.sums = EmulatedSums(self.task, state.participants, lane.rules.seed)
        while lane.sums is not None and state.stage in MASKED and state.stage is not lane.sums.stage:
            try:
                lost = lane.sums.close(lane.sums.stage)
            except MienError as error:
                state, more = advance(lane.rules, state, SumFailed(error.message), now)
            else:
                state, more = advance(lane.rules, state, Dropped(lost), now)
            effects = (*effects, *more)
        return state, effects
