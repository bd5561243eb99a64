"""Rules of cohorts: which one may gather devices, whom it may ask, and when it is given up; no I/O.

The coordinator and the simulator's fleet decide by these alone. A task that runs one round after another has one cohort
at a time, for which most of this makes no difference; in asynchronous mode the rules are `mien.rounds.buffered`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from mien.methods import find_method
from mien.protocol.ids import AttemptNumber, DeviceId, RoundNumber
from mien.protocol.rounds import Stage
from mien.rounds.buffered import Flight, is_overdue, may_open, overdue_in_words
from mien.rounds.machine import Event, RoundRules, RoundState, Step, TimePassed, lacking
from mien.rounds.records import RoundRecord, TaskRecord, TaskState
from mien.specs import TaskSpec


class UnderWay(Protocol):
    """An attempt that is not over."""

    record: RoundRecord
    state: RoundState
    rules: RoundRules


class Cohort(Protocol):
    """A place of a task for one cohort at a time, from its first device to its sum."""

    @property
    def under_way(self) -> UnderWay | None:
        """The cohort's attempt, None between attempts."""

    def tell(self, event: Event) -> None:
        """Hand an event over without waiting."""


class CohortRules:
    """One task as its cohorts see it; `newest` are the numbers of its newest round and of that round's attempt."""

    def __init__(self, record: TaskRecord, spec: TaskSpec) -> None:
        self.newest = RoundNumber(0), AttemptNumber(0)
        self.cohorts: tuple[Cohort, ...] = ()
        self._record, self._spec = record, spec

    @property
    def is_asynchronous(self) -> bool:
        """True if several cohorts may be in flight."""
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
            for cohort in self.cohorts:  # which may be overdue now, or not wanted any more
                cohort.tell(TimePassed())

    def has_changed(self) -> None:
        """Note that the record of an asynchronous task has changed."""

    def wants_devices(self, cohort: Cohort) -> bool:
        """Return whether a device that checks in with a cohort now could be chosen."""
        if self.record.state is not TaskState.RUNNING:
            return False
        attempt = cohort.under_way
        return self.may_open(cohort) if attempt is None else attempt.state.stage is Stage.SELECTING

    def may_open(self, cohort: Cohort) -> bool:
        """Return whether a place without a cohort may gather one."""
        if not self.is_asynchronous:
            return True
        return may_open(self._spec, self.record.rounds_closed, [_flight(other) for other in self._others(cohort)])

    def is_busy(self, device_id: DeviceId, cohort: Cohort) -> bool:
        """Return whether a device takes part in another cohort: a phone is in one of them at a time."""
        if not self.is_asynchronous:
            return False
        steps = (other.state.participants.get(device_id, Step.LEFT) for other in self._others(cohort))
        return any(step not in (Step.LATE, Step.LEFT) for step in steps)

    def next_attempt(self) -> tuple[RoundNumber, AttemptNumber]:
        """Return the round and attempt that come next; in asynchronous mode every cohort has a number."""
        newest, attempt = self.newest
        if self.is_asynchronous:
            return RoundNumber(newest + 1), AttemptNumber(1)
        number = RoundNumber(self.record.rounds_closed + 1)
        return number, AttemptNumber(attempt + 1 if newest == number else 1)

    def based_on_newest(self, record: RoundRecord) -> RoundRecord:
        """Return a round whose devices have just been chosen.

        Other cohorts may have made models since it began to gather: its devices get the newest.
        """
        return replace(record, base_model_id=self.record.model_id, base_version=self.record.rounds_closed)

    def why_given_up(self, cohort: Cohort) -> str:
        """Return why a cohort does not go on, where other cohorts or an operator brought that about."""
        attempt, task, spec = cohort.under_way, self.record, self._spec.asynchronous
        if spec is None or attempt is None:
            return ""
        is_gathering = attempt.state.stage is Stage.SELECTING
        if task.state is not TaskState.RUNNING if is_gathering else task.state.is_over:
            return f"task {task.state} {task.reason}".rstrip()
        version, base = task.rounds_closed, attempt.record.base_version
        if is_gathering or not is_overdue(spec, version, base):
            return ""
        return overdue_in_words(spec, version, base)

    def only_waited(self, attempt: UnderWay, now: float, *, keeps_out: bool = False) -> bool:
        """Return whether an attempt that is aborted now only waited for devices, which brings its task to no pause.

        One of sums that add up waits for devices that are not counted yet, any other for those that it must include:
        unless it `keeps_out` some devices, for those may be the very ones, and it would wait without end.
        """
        if attempt.state.stage is not Stage.SELECTING:
            return False
        is_lacking = lacking(attempt.rules, attempt.state, now) > 0
        return find_method(self._spec.method).adds_up or (is_lacking and not keeps_out)

    def _others(self, cohort: Cohort) -> list[UnderWay]:
        found = [other.under_way for other in self.cohorts if other is not cohort]
        return [attempt for attempt in found if attempt is not None]


def _flight(attempt: UnderWay) -> Flight:
    is_gathering = attempt.state.stage is Stage.SELECTING
    return Flight(attempt.record.round, None if is_gathering else attempt.record.base_version)
