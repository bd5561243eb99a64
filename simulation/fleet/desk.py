"""The coordinator as the fleet meets it: cohorts that are led by the state machine, on a clock that the fleet moves.

No decision is made here. When a round opens and who may be asked is `mien.rounds.cohort_rules`, what an event does
`mien.rounds.machine`, what a round's end makes of its task `mien.rounds.verdicts`, whether a private sum
goes on `mien.secagg.quorum`. What the real runner (`coordinator/rounds/cohort.py`) adds is storage, which a fleet has
none of. Gates are taken to pass a candidate at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from mien.errors import MienError
from mien.methods import find_method
from mien.protocol.ids import DeviceId, ModelId, PopulationId, RoundId, TaskId
from mien.protocol.rounds import Role, Stage
from mien.rounds import verdicts
from mien.rounds.cohort_rules import CohortRules
from mien.rounds.machine import (
    COUNTED,
    MASKED,
    SUM_IS_OPEN,
    Cancelled,
    CheckedIn,
    Dropped,
    Effect,
    Event,
    RoundRules,
    RoundState,
    Stepped,
    SumFailed,
    Summed,
    SumWanted,
    TimePassed,
    Transition,
    Uploaded,
    advance,
    open_round,
    wakes_at,
)
from mien.rounds.records import RoundRecord, TaskRecord, TaskState
from mien.specs import TaskSpec
from simulation.fleet.masking import EmulatedSums

TASK_ID: Final = TaskId("f1ee70000000000f")
_NONE: Final = ModelId("")
_NO_SHARES: Final = "a secret lacks shares; nothing was opened, the round is repeated"


@dataclass(eq=False)
class DeskAttempt:
    """One attempt from its opening on."""

    record: RoundRecord
    state: RoundState
    rules: RoundRules
    sums: EmulatedSums | None = None
    closing_until_s: float = math.inf


@dataclass(eq=False)
class DeskCohort:
    """One cohort at a time; `attempt` is its newest one, open or just over."""

    desk: Desk
    index: int
    attempt: DeskAttempt | None = None

    def tell(self, event: Event) -> None:
        """Hand an event over without waiting."""
        self.desk.told.append((self, event))

    @property
    def under_way(self) -> DeskAttempt | None:
        """The attempt, None between attempts."""
        return None if self.attempt is None or self.attempt.state.stage.is_over else self.attempt

    def is_newest(self, round_id: int) -> bool:
        """Return whether an attempt is the newest one."""
        return self.attempt is not None and self.attempt.record.id == round_id


@dataclass(frozen=True)
class Change:
    """The effect of one step on a cohort: the attempt's states before and after it, and what there is to carry out."""

    cohort: DeskCohort
    attempt: DeskAttempt
    before: RoundState
    after: RoundState
    effects: tuple[Effect, ...] = field(repr=False)


class Listener(Protocol):
    """Receives all events, after they have happened."""

    def changed(self, change: Change, now: float) -> None:
        """Receive a step of an attempt."""
        ...


class Desk:
    """One task's coordinator. Every call names the time, which never goes back."""

    def __init__(
        self, task: TaskSpec, listener: Listener, *, max_aborted: int, closing_s: float, task_id: TaskId = TASK_ID
    ) -> None:
        self.task, self._listener = task, listener
        self._max_aborted, self._closing_s = max_aborted, closing_s
        record = TaskRecord(
            task_id, task.name, PopulationId(task.population), b"", "", TaskState.RUNNING, _NONE, _NONE, "", 0
        )
        self._rules = CohortRules(record, task)
        count = 1 if task.asynchronous is None else task.asynchronous.max_concurrency
        self.cohorts = tuple(DeskCohort(self, index) for index in range(count))
        self._rules.cohorts = self.cohorts
        self.told = deque[tuple[DeskCohort, Event]]()
        self._num_rounds = 0
        self._adds_up, self._counted = find_method(task.method).adds_up, set[DeviceId]()
        self._steps_free_s = -math.inf

    @property
    def record(self) -> TaskRecord:
        """The task as it is now."""
        return self._rules.record

    # What phones ask

    def cohort_for(self, device: DeviceId) -> DeskCohort | None:
        """Return the first cohort that a device which checks in is offered to, as `Engine.check_in` does."""
        if device in self._counted:
            return None
        for cohort in self.cohorts:
            if self._rules.wants_devices(cohort) and not self._rules.is_busy(device, cohort):
                return cohort
        return None

    @property
    def wants_devices(self) -> bool:
        """True while any device that checks in could be chosen."""
        return any(self._rules.wants_devices(cohort) for cohort in self.cohorts)

    def check_in(
        self, cohort: DeskCohort, devices: Iterable[DeviceId], now: float, labelled: frozenset[DeviceId] = frozenset()
    ) -> None:
        """Offer devices to a cohort, all at once; the first ones open an attempt. `labelled` say so of themselves."""
        if not self._rules.wants_devices(cohort):
            return
        if cohort.under_way is None:
            self._open(cohort, now)
        idle = frozenset(device for device in devices if not self._rules.is_busy(device, cohort))
        self._handle(cohort, [CheckedIn(idle, labelled & idle)], now)

    def hear(self, cohort: DeskCohort, event: Event, now: float) -> None:
        """Receive a device's event in an attempt."""
        self._handle(cohort, [event], now)

    # What time does

    def wakes_s(self, cohort: DeskCohort, now: float) -> float:
        """Return the time at which a cohort next moves by time alone; infinity for never."""
        if (attempt := cohort.attempt) is None:
            return math.inf
        if attempt.state.stage is Stage.CLOSING:
            return attempt.closing_until_s
        return wakes_at(attempt.rules, attempt.state, now)

    def time_passed(self, cohort: DeskCohort, now: float) -> None:
        """Move a cohort on whose time has come."""
        attempt = cohort.attempt
        if attempt is not None and attempt.state.stage is Stage.CLOSING:
            if now >= attempt.closing_until_s:
                can_open = attempt.sums is None or attempt.sums.can_open
                self._handle(cohort, [Summed() if can_open else SumFailed(_NO_SHARES)], now)
            return
        self._handle(cohort, [TimePassed()], now)

    def resume(self) -> None:
        """Have a paused task go on, as an operator does."""
        self._rules.record = replace(self.record, state=TaskState.RUNNING, reason="", aborted_in_a_row=0)

    # How a cohort is led: as `coordinator.rounds.cohort.Cohort` does, without its store

    def _open(self, cohort: DeskCohort, now: float) -> None:
        number, attempt = self._rules.newest = self._rules.next_attempt()
        self._num_rounds += 1
        rules = RoundRules.of(self.task, task_id=self.record.task_id, round_number=number, attempt=attempt)
        state, _ = open_round(rules, now)
        record = RoundRecord(
            RoundId(self._num_rounds), self.record.task_id, number, attempt, state.stage, None, _NONE, round(now * 1000)
        )
        cohort.attempt = DeskAttempt(record, state, rules)

    def _handle(self, cohort: DeskCohort, events: Sequence[Event], now: float) -> None:
        self._step(cohort, events, now)
        while self.told:
            other, event = self.told.popleft()
            self._step(other, [event], now)

    def _step(self, cohort: DeskCohort, events: Sequence[Event], now: float) -> None:
        if reason := self._rules.why_given_up(cohort):
            events = [Cancelled(reason), *events]
        if (attempt := cohort.attempt) is None:
            return
        before, effects = attempt.state, list[Effect]()
        for event in events:
            try:
                attempt.state, more = self._advance(attempt, event, now)
            except MienError:  # what the device is told, and knows from its own side here
                continue
            effects.extend(more)
        after = attempt.state
        if self._adds_up and before.stage not in SUM_IS_OPEN and after.stage in SUM_IS_OPEN:
            self._counted.update(after.devices(*COUNTED))
        if before.stage is Stage.SELECTING and after.stage is Stage.TRAINING:
            attempt.record = self._rules.based_on_newest(attempt.record)
        if any(isinstance(effect, SumWanted) for effect in effects):
            self._steps_free_s = max(self._steps_free_s, now) + self._closing_s  # one step at a time
            attempt.closing_until_s = self._steps_free_s
        if after.stage.is_over and not before.stage.is_over:
            self._ended(attempt, before, events, now)
        if before is not after or effects:
            self._listener.changed(Change(cohort, attempt, before, after, tuple(effects)), now)

    def _ended(self, attempt: DeskAttempt, before: RoundState, events: Sequence[Event], now: float) -> None:
        state = attempt.state
        if state.stage is Stage.CLOSED:
            task = replace(self.record, rounds_closed=self.record.rounds_closed + 1, aborted_in_a_row=0)
            self._rules.record = verdicts.after_round(self.task, task, None, round(now * 1000))
        elif not any(isinstance(event, Cancelled) for event in events):
            if self._rules.only_waited(replace(attempt, state=before), now):
                return
            after = verdicts.after_abort(self.record, state.reason, role=Role.TRAIN, max_aborted=self._max_aborted)
            self._rules.record = after

    def _advance(self, attempt: DeskAttempt, event: Event, now: float) -> Transition:
        """Return the state after one event, the stages of the sum that it ends ended (as `Attempt.advance`)."""
        state, sums = attempt.state, attempt.sums
        after = advance(attempt.rules, state, event, now)
        if sums is not None and isinstance(event, Stepped | Uploaded) and after[0] is not state:
            stage = Stage.UPLOAD if isinstance(event, Uploaded) else event.stage
            sums.accept(event.device_id, stage)
            if stage is Stage.UNMASK and sums.can_open:
                after = advance(attempt.rules, state, Stepped(event.device_id, stage, is_enough=True), now)
        return self._follow(attempt, after, now)

    def _follow(self, attempt: DeskAttempt, transition: Transition, now: float) -> Transition:
        state, effects = transition
        if state.stage is Stage.KEYS and attempt.sums is None:
            attempt.sums = EmulatedSums(self.task, state.participants, attempt.rules.seed)
        while attempt.sums is not None and state.stage in MASKED and state.stage is not attempt.sums.stage:
            try:
                lost = attempt.sums.close(attempt.sums.stage)
            except MienError as error:
                state, more = advance(attempt.rules, state, SumFailed(error.message), now)
            else:
                state, more = advance(attempt.rules, state, Dropped(lost), now)
            effects = (*effects, *more)
        return state, effects
