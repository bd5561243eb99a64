"""Phones and coordinator together on one virtual clock: who checks in when, who is chosen, and how far each one gets.

A phone does what `device_sdk.rounds.participate` does. While it is idle, charging and on an unmetered network it checks
in, and holds the call as long as the coordinator does; told to come back, it does so if it is still there, else when it
is there again. Chosen, it trains: while it is in use it pauses, and goes on if the round still waits for it. After that
it does its part of each stage while it has a network, and goes on with one when it has it again. When a round is over
for it, it checks in again at once. A phone whose program is stopped without a word comes back when it is there the next
time: it trains anew or uploads again where the round still waits, and leaves a private sum, whose keys are gone. One
whose system stops the app leaves the round at once and says so, but for what it has trained and not begun to send.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mien.errors import ConfigError
from mien.protocol.ids import DeviceId, TaskId
from mien.protocol.rounds import Stage
from mien.rounds.machine import (
    COUNTED,
    BecameLate,
    Effect,
    Left,
    Selected,
    StageEntered,
    Step,
    Stepped,
    Trained,
    Uploaded,
    Withdrew,
)
from mien.rounds.pacing import ACTIVE_S, COUNT_EVERY_S, Pace, gathering_pause_s, pause_s, wanted_per_s
from mien.rounds.records import TaskState
from mien.shell.doing import doing
from mien.specs import TaskSpec
from simulation.fleet.clock import Agenda
from simulation.fleet.desk import TASK_ID, Change, Desk, DeskCohort
from simulation.fleet.phones import Phones
from simulation.fleet.profile import CoordinatorSettings
from simulation.fleet.records import Attempt, Fate, History, PhoneCounts
from simulation.fleet.windows import DAY_S, HOUR_S, Coming, End

LOOK_EVERY_S: Final = 15.0
"""Pause between a training phone's questions whether its round still waits (`device_sdk.rounds.watch`)."""

FAILED_PAUSE_S: Final = 60.0
"""Pause of a phone after it left a round by an error (`device_sdk.rounds.participate`)."""

_FATES: Final = {End.IN_USE: Fate.IN_USE, End.OFFLINE: Fate.OFFLINE, End.STOPPED: Fate.STOPPED}
"""Why a phone pauses that is no longer there, by how its time ended."""


@dataclass
class _Held:
    """A check-in that the coordinator holds, and the cohort that the phone was offered to."""

    token: int
    cohort: DeskCohort | None = None


@dataclass
class _Job:
    """A phone's part in an attempt. `token` is that of the work under way; what others had begun is void.

    `pause` is why it does not work now, `remaining_s` what is then left of its training.
    """

    cohort: DeskCohort
    round_id: int
    attempt: Attempt
    tells: bool = False
    token: int = 0
    stage: Stage = Stage.TRAINING
    fails_after_s: float = math.inf
    is_working: bool = False
    began_s: float = 0.0
    worked_s: float = 0.0
    remaining_s: float = 0.0
    pause: Fate | None = None


class Fleet:
    """Phones under one task, from the start of the clock to `until_s`."""

    def __init__(
        self,
        task: TaskSpec,
        phones: Phones,
        settings: CoordinatorSettings,
        *,
        until_s: float,
        seed: int = 0,
        task_id: TaskId = TASK_ID,
        draw: Callable[[], float] | None = None,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """`draw` spreads pauses in the place of the seed's own chance, in [0, 1)."""
        self._task, self._phones, self._settings, self._until_s = task, phones, settings, until_s
        self._pace = Pace(settings.retry_after_s, settings.check_ins_per_s)
        self._desk = Desk(task, self, max_aborted=settings.max_aborted, closing_s=settings.closing_s, task_id=task_id)
        rng = np.random.default_rng([seed, 6])
        self._draw, self._look_every_s = draw or rng.random, look_every_s
        num, fewest = len(phones.tier_of), task.cohort.min_labelled
        self._labelled = frozenset(map(phones.name, range(min(phones.num_labelled, num))))
        if len(self._labelled) < fewest:
            raise ConfigError(
                f"cohort.must_include.labelled is {fewest}, and of these phones {len(self._labelled)} are labelled: no "
                "round can begin; raise work.labelled in the profile"
            )
        self._coming, self._agenda = Coming(phones.presence, until_s), Agenda()
        self._there_until_s = np.full(num, -math.inf)
        self._ends_by = np.zeros(num, np.int8)
        # The fleet was there before its clock began: its phones are told times already, and do not come all at once.
        self._due_s = rng.random(num) * min(num / settings.check_ins_per_s, DAY_S)
        self._counts, self._begun = PhoneCounts.of(num), np.zeros(num, np.int32)
        self._held: dict[int, _Held] = {}
        self._arrived: list[int] = []
        self._awaited: dict[int, tuple[DeskCohort, int]] = {}
        self._jobs: dict[int, _Job] = {}
        self._attempts: dict[int, Attempt] = {}
        self._cohort_wakes_s = [math.inf] * len(self._desk.cohorts)
        self._there, self._check_ins = list[int](), np.zeros(math.ceil(until_s / HOUR_S) + 1, np.int64)
        self._pauses: list[tuple[float, str]] = []
        self._active, self._count_again_s, self._tokens = num, 0.0, 0
        self._looks_again = self._is_over = False
        self.now = 0.0

    def run(self) -> History:
        """Return the history until the time was over, or the task."""
        self._agenda.put(0.0, self._sample)
        with doing("Running the fleet by its virtual clock", total=math.ceil(self._until_s / HOUR_S)) as self._hours:
            while not self._is_over:  # as of the last change of its task
                due_s, comes_s = self._agenda.next_s, self._coming.next_s()
                if min(due_s, comes_s) > self._until_s:
                    self.now = self._until_s
                    break
                if comes_s <= due_s:
                    self.now = comes_s
                    self._comes(*self._coming.take())
                else:
                    self.now = due_s
                    self._agenda.run_next()
        record = self._desk.record
        return History(
            task=self._task.name,
            ended_s=self.now,
            state=str(record.state),
            rounds_closed=record.rounds_closed,
            attempts=tuple(self._attempts.values()),
            phones=self._counts,
            there=np.array(self._there, np.int64),
            check_ins=self._check_ins,
            pauses=tuple(self._pauses),
        )

    # A phone that is there

    def _comes(self, phone: int, until_s: float, ends_by: End) -> None:
        """A phone is idle, charging and on its network, until a time."""
        was_until_s = float(self._there_until_s[phone])
        if until_s <= was_until_s:
            return
        self._there_until_s[phone], self._ends_by[phone] = until_s, ends_by
        job = self._jobs.get(phone)
        if job is not None:
            self._goes_on(phone, job)
        elif was_until_s <= self.now or self._due_s[phone] >= was_until_s:
            self._check_in_later(phone, max(self.now, float(self._due_s[phone])))

    def _goes_on(self, phone: int, job: _Job) -> None:
        """A phone that had to pause is there again."""
        if job.pause is None:
            return
        why, job.pause = job.pause, None
        if why is Fate.STOPPED and job.stage is not Stage.KEYS and self._task.privacy.is_masked:
            self._gives_up(phone, job, self.now, Fate.STOPPED)  # the keys that it had spoken of are gone
        elif why is not Fate.FAILED:
            is_training = job.stage is Stage.TRAINING
            self._work(phone, job, job.remaining_s if is_training else self._phones.stage_s(phone, job.stage))
        elif job.stage is Stage.TRAINING:
            self._trains(phone, job)
        elif not self._task.privacy.is_masked:
            self._work(phone, job, self._phones.stage_s(phone, job.stage))
        else:
            self._gives_up(phone, job, self.now, Fate.FAILED)

    def _check_in_later(self, phone: int, at_s: float) -> None:
        self._due_s[phone] = at_s
        if at_s < self._there_until_s[phone]:
            self._agenda.put(at_s, self._check_in, phone)

    def _check_in(self, phone: int) -> None:
        if self._there_until_s[phone] <= self.now or phone in self._held or phone in self._jobs:
            return
        self._counts.seen_s[phone] = self.now
        self._check_ins[int(self.now // HOUR_S)] += 1
        if self._takes_assignment(phone):
            return
        self._tokens += 1
        self._held[phone] = _Held(self._tokens)
        end_s = min(self.now + self._settings.check_in_hold_s, float(self._there_until_s[phone]))
        self._agenda.put(end_s, self._hold_ends, phone, self._tokens)
        if not self._arrived:  # all that come at one time are offered at once
            self._agenda.put(self.now, self._offer_arrived)
        self._arrived.append(phone)

    def _takes_assignment(self, phone: int) -> bool:
        """Return whether a phone was chosen while it was away for a moment, and begins now."""
        awaited = self._awaited.pop(phone, None)
        if awaited is None:
            return False
        cohort, round_id = awaited
        if not cohort.is_newest(round_id):
            return False
        self._begin(phone, cohort, round_id)
        return True

    def _hold_ends(self, phone: int, token: int) -> None:
        held = self._held.get(phone)
        if held is None or held.token != token:
            return
        hangs_up = self._there_until_s[phone] <= self.now
        if not hangs_up:
            self._offer([phone])  # the coordinator looks once more before it answers
        if self._held.pop(phone, None) is None:
            return
        cohort = held.cohort
        gathers = cohort is not None and cohort.attempt is not None and cohort.attempt.state.stage is Stage.SELECTING
        if not hangs_up:
            pause = gathering_pause_s(self._pace) if gathers else self._pause_s()
            self._check_in_later(phone, self.now + pause)
            return
        self._due_s[phone] = self.now
        if gathers and cohort is not None:
            self._desk.hear(cohort, Withdrew(self._phones.name(phone)), self.now)

    def _pause_s(self) -> float:
        """Return how long a phone that nobody needs is to stay away, as the coordinator's `Pacer` says it."""
        if self.now >= self._count_again_s:
            self._count_again_s = self.now + COUNT_EVERY_S
            self._active = int(np.count_nonzero(self._counts.seen_s >= self.now - ACTIVE_S))
        wanted = wanted_per_s([self._task] if self._desk.wants_devices else [])
        return pause_s(self._pace, devices=self._active, wanted_per_s=wanted, draw=self._draw())

    def _offer_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._offer(arrived)

    def _look_again(self) -> None:
        """Every held check-in looks for a round again: something has changed."""
        self._looks_again = False
        self._offer([*self._held])

    def _offer(self, phones: Sequence[int]) -> None:
        """Offer phones whose check-ins are held to the cohorts that want them, each cohort's all at once."""
        if not self._desk.wants_devices:
            return
        offers: dict[int, list[DeviceId]] = {}
        for phone in phones:
            held, name = self._held.get(phone), self._phones.name(phone)
            cohort = None if held is None else self._desk.cohort_for(name)
            if held is not None and cohort is not None:
                held.cohort = cohort
                offers.setdefault(cohort.index, []).append(name)
        for index, names in offers.items():
            self._desk.check_in(self._desk.cohorts[index], names, self.now, self._labelled.intersection(names))
            self._watch(self._desk.cohorts[index])

    # A phone that works

    def _begin(self, phone: int, cohort: DeskCohort, round_id: int) -> None:
        attempt = self._attempts[round_id]
        job = _Job(cohort, round_id, attempt)
        self._jobs[phone] = job
        attempt.received_bytes += self._phones.cost.model_bytes
        self._trains(phone, job)

    def _trains(self, phone: int, job: _Job) -> None:
        """A phone begins to train, for the first time in this attempt or anew."""
        outlook = self._phones.outlook(phone, int(self._begun[phone]))
        self._begun[phone] += 1
        job.tells = outlook.tells
        job.fails_after_s = math.inf if outlook.fails_after_s is None else job.worked_s + outlook.fails_after_s
        self._work(phone, job, outlook.training_s)

    def _work(self, phone: int, job: _Job, seconds: float) -> None:
        """Have a phone work for a while, unless it fails or is taken away before that."""
        self._tokens += 1
        job.token, job.is_working, job.began_s, job.remaining_s = self._tokens, True, self.now, seconds
        left_s = job.fails_after_s - job.worked_s
        if left_s <= seconds:
            self._agenda.put(self.now + max(left_s, 0.0), self._fails, phone, job.token)
        self._agenda.put(self.now + seconds, self._is_done, phone, job.token)
        if self._there_until_s[phone] < self.now + seconds:
            self._agenda.put(max(float(self._there_until_s[phone]), self.now), self._is_taken, phone, job.token)

    def _job(self, phone: int, token: int) -> _Job | None:
        job = self._jobs.get(phone)
        return job if job is not None and job.token == token and job.is_working else None

    def _stops(self, job: _Job) -> None:
        """Count the time at work so far."""
        if job.is_working:
            job.worked_s += self.now - job.began_s
            job.remaining_s = max(job.remaining_s - (self.now - job.began_s), 0.0)
            job.is_working = False

    def _is_taken(self, phone: int, token: int) -> None:
        """Somebody takes the phone in hand, or with them."""
        job = self._job(phone, token)
        if job is None:
            return
        if self._there_until_s[phone] > self.now:  # a later span went on where this one ended
            self._agenda.put(float(self._there_until_s[phone]), self._is_taken, phone, token)
            return
        ends_by = self._ends_by[phone]
        if job.stage is not Stage.TRAINING and ends_by == End.IN_USE:
            return  # what is left are short answers, and it has a network
        self._stops(job)
        if ends_by == End.STOPPED and (job.stage is Stage.TRAINING or self._task.privacy.is_masked):
            self._gives_up(phone, job, self.now, Fate.STOPPED)
        else:
            job.pause = _FATES[End(ends_by)]

    def _fails(self, phone: int, token: int) -> None:
        job = self._job(phone, token)
        if job is None:
            return
        self._stops(job)
        job.fails_after_s = math.inf
        if job.tells:
            self._gives_up(phone, job, self.now + FAILED_PAUSE_S, Fate.FAILED)
        else:
            job.pause = Fate.FAILED

    def _gives_up(self, phone: int, job: _Job, back_s: float, why: Fate) -> None:
        """A phone that failed, or was stopped, leaves its round and says so."""
        self._finish(phone, why, back_s)
        if job.cohort.is_newest(job.round_id):
            self._desk.hear(job.cohort, Left(self._phones.name(phone), ""), self.now)
            self._watch(job.cohort)

    def _is_done(self, phone: int, token: int) -> None:
        """A phone has trained, or done its part of a stage."""
        job = self._job(phone, token)
        if job is None:
            return
        self._stops(job)
        name = self._phones.name(phone)
        if job.stage is Stage.TRAINING:
            self._desk.hear(job.cohort, Trained(name), self.now)
        else:
            job.attempt.sent_bytes += self._phones.cost.stages[job.stage].sent
            did = Uploaded(name) if job.stage is Stage.UPLOAD else Stepped(name, job.stage)
            self._desk.hear(job.cohort, did, self.now)
        self._watch(job.cohort)

    def _finish(self, phone: int, fate: Fate, back_s: float) -> None:
        """A phone's part in an attempt is over; it checks in again from `back_s` on."""
        job = self._jobs.pop(phone)
        self._stops(job)
        if job.pause is Fate.FAILED:  # its program does not run until it is there the next time
            back_s = float(self._there_until_s[phone])
        job.attempt.fates[fate] += 1
        job.attempt.worked_s += job.worked_s
        if fate is Fate.COUNTED:
            self._counts.counted[phone] += 1
        else:
            job.attempt.wasted_s += job.worked_s
        self._check_in_later(phone, max(back_s, self.now) + self._phones.latency_s)

    # What the coordinator says

    def changed(self, change: Change, now: float) -> None:
        """Carry out what a step of an attempt asks for, and write it down."""
        assert now == self.now
        record = change.attempt.record
        attempt = self._attempts.get(record.id)
        if attempt is None:
            attempt = Attempt(record.round, record.attempt, change.cohort.index, now)
            self._attempts[record.id] = attempt
        if change.effects and not self._looks_again:  # before those whose round is over come again
            self._looks_again = True
            self._agenda.put(now, self._look_again)
        for effect in change.effects:
            self._carry_out(effect, change, attempt)
        self._watch(change.cohort)

    def _carry_out(self, effect: Effect, change: Change, attempt: Attempt) -> None:
        if isinstance(effect, Selected):
            self._are_chosen(effect.device_ids, change, attempt)
        elif isinstance(effect, BecameLate):
            for name in effect.device_ids:
                self._is_late(name, change, attempt)
        elif isinstance(effect, StageEntered):
            attempt.stages.append((effect.stage, self.now))
            if effect.stage.is_over:
                self._is_over_for_all(change, attempt)
            elif effect.stage in self._phones.cost.stages and effect.stage is change.after.stage:
                self._are_asked(effect.stage, change)

    def _are_chosen(self, names: Iterable[DeviceId], change: Change, attempt: Attempt) -> None:
        cohort, record = change.cohort, change.attempt.record
        attempt.selected_s, attempt.base_version = self.now, record.base_version
        for name in names:
            phone = self._phones.number(name)
            attempt.num_selected += 1
            self._counts.chosen[phone] += 1
            if self._held.pop(phone, None) is not None:
                self._begin(phone, cohort, record.id)
            else:
                self._awaited[phone] = cohort, record.id

    def _are_asked(self, stage: Stage, change: Change) -> None:
        """Those who did their part of the stage before begin with this one."""
        rules, sums = change.attempt.rules, change.attempt.sums
        for name in change.after.devices(rules.asked(stage)):
            phone = self._phones.number(name)
            job = self._jobs.get(phone)
            if job is None or job.cohort is not change.cohort or (sums is not None and not sums.is_asked(name, stage)):
                continue
            job.stage = stage
            if job.pause is not None:
                continue
            if self._there_until_s[phone] <= self.now and self._ends_by[phone] != End.IN_USE:
                job.pause = _FATES[End(self._ends_by[phone])]
                continue
            job.attempt.received_bytes += self._phones.cost.stages[stage].received
            self._work(phone, job, self._phones.stage_s(phone, stage))

    def _is_late(self, name: DeviceId, change: Change, attempt: Attempt) -> None:
        phone = self._phones.number(name)
        job = self._jobs.get(phone)
        if job is None or job.attempt is not attempt:
            if self._awaited.pop(phone, None) is not None:
                attempt.fates[Fate.NEVER_CAME] += 1
            return
        has_all = change.before.stage is Stage.TRAINING and _num_trained(change) >= change.attempt.rules.size
        fate = job.pause or (Fate.SPARE if has_all else Fate.SLOW)
        looks_s = self._look_every_s * self._draw() if job.is_working else 0.0
        self._finish(phone, fate, self.now + looks_s)

    def _is_over_for_all(self, change: Change, attempt: Attempt) -> None:
        attempt.ended_s, attempt.reason = self.now, change.after.reason
        attempt.is_closed = change.after.stage is Stage.CLOSED
        if attempt.is_closed:
            attempt.version = self._desk.record.rounds_closed
            attempt.devices = change.after.devices(*COUNTED)
        for name in change.after.participants:
            phone = self._phones.number(name)
            job = self._jobs.get(phone)
            if job is not None and job.attempt is attempt:
                is_in = attempt.is_closed and change.after.participants[name] in COUNTED
                self._finish(phone, Fate.COUNTED if is_in else job.pause or Fate.ABORTED, self.now)
            elif phone in self._awaited and self._awaited[phone][0] is change.cohort:
                del self._awaited[phone]
                attempt.fates[Fate.NEVER_CAME] += 1
        state = self._desk.record.state
        if state is TaskState.PAUSED and (not self._pauses or self._pauses[-1][0] < self.now):
            self._is_paused()
        self._is_over = state.is_over  # a paused task stays so for the rest of the time, which counts

    def _is_paused(self) -> None:
        self._pauses.append((self.now, self._desk.record.reason))
        if self._settings.resume_after_s:
            self._agenda.put(self.now + self._settings.resume_after_s, self._resume)

    def _resume(self) -> None:
        self._desk.resume()
        self._agenda.put(self.now, self._look_again)

    # Time

    def _watch(self, cohort: DeskCohort) -> None:
        """Have a cohort moved on when its time comes."""
        due_s = self._desk.wakes_s(cohort, self.now)
        if due_s < math.inf and due_s != self._cohort_wakes_s[cohort.index]:
            self._cohort_wakes_s[cohort.index] = due_s
            self._agenda.put(due_s, self._cohort_wakes, cohort, due_s)

    def _cohort_wakes(self, cohort: DeskCohort, due_s: float) -> None:
        if self._cohort_wakes_s[cohort.index] != due_s:
            return
        self._cohort_wakes_s[cohort.index] = math.inf
        self._desk.time_passed(cohort, self.now)
        self._watch(cohort)

    def _sample(self) -> None:
        self._there.append(int(np.count_nonzero(self._there_until_s > self.now)))
        self._hours.show(done=len(self._there) - 1, amount=f"hour {len(self._there) - 1} of {self._hours.total}")
        self._agenda.put(self.now + HOUR_S, self._sample)


def _num_trained(change: Change) -> int:
    """Return how many devices of an attempt that leaves training have trained."""
    return len(change.after.devices(Step.TRAINED))
