"""One attempt of a round as a pure state machine: no I/O, no clock, no randomness of its own.

::

    SELECTING -> TRAINING -> KEYS -> SHARES -> UPLOAD -> CONSISTENCY -> UNMASK -> CLOSING -> CLOSED
        any of them -> ABORTED(reason)

Plain sums go from TRAINING to UPLOAD to CLOSING; masked ones under the honest-but-curious profile leave CONSISTENCY
out (`RoundRules.path`). What the cryptography makes of a stage is not known here: the driver hands over steps that
held, and says `Dropped` for devices that a stage's end left without a part.

`advance` takes a state, one event and the time, and returns the next state with a list of effects that whoever drives
the machine has to carry out, in order. A refused event raises and changes nothing. Time is in seconds since an epoch
of the driver's choice: the coordinator passes its clock, the simulator a virtual one.

A soft deadline ends a stage as soon as the quorum has done its part (`RoundRules.soft_s`); the hard one ends it in any
case.

CLOSING lies between the last stage and the commit of the new model. It has no deadline: it ends when the driver says
how the sum went. To devices it looks like the stage before it. Whatever devices do or leave undone, `TimePassed` at a
state's deadline moves it on, so that by the last deadline a round is closing, closed or aborted.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from mien.errors import LateError, NotFoundError, RateLimitedError, ViolationError
from mien.protocol.ids import AttemptNumber, DeviceId, RoundNumber, TaskId
from mien.protocol.rounds import Stage
from mien.rounds.candidates import Candidates, Line, lined_up
from mien.specs import TaskSpec


class Step(enum.StrEnum):
    """Progress of one selected device."""

    SELECTED = "selected"
    TRAINED = "trained"
    KEYED = "keyed"
    SHARED = "shared"
    UPLOADED = "uploaded"
    AGREED = "agreed"
    RELEASED = "released"
    GONE = "gone"
    LATE = "late"
    LEFT = "left"


STEP_OF: Final[Mapping[Stage, Step]] = {
    Stage.TRAINING: Step.TRAINED,
    Stage.KEYS: Step.KEYED,
    Stage.SHARES: Step.SHARED,
    Stage.UPLOAD: Step.UPLOADED,
    Stage.CONSISTENCY: Step.AGREED,
    Stage.UNMASK: Step.RELEASED,
}
"""Step that a device has reached once it has done a stage's part."""

ORDER: Final = (Step.SELECTED, *STEP_OF.values())
COUNTED: Final = frozenset({Step.UPLOADED, Step.AGREED, Step.RELEASED, Step.GONE})
"""Steps of devices whose contribution is in the sum; one that leaves afterwards is GONE and takes nothing out of it."""

REPORTED: Final = frozenset(STEP_OF.values()) | COUNTED
"""Steps of devices that have trained and have not been left behind."""

_AFTER_THE_VECTOR: Final = (Stage.CONSISTENCY, Stage.UNMASK)
PLAIN: Final = (Stage.TRAINING, Stage.UPLOAD)
MASKED: Final = (Stage.TRAINING, Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK)
MASKED_CURIOUS: Final = (Stage.TRAINING, Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.UNMASK)
PATHS: Final = {"off": PLAIN, "malicious_server": MASKED, "honest_but_curious": MASKED_CURIOUS}
"""The stages that devices go through, by `PrivacySpec.secure_aggregation`."""

SUM_IS_OPEN: Final = (Stage.UNMASK, Stage.CLOSING, Stage.CLOSED)
"""Stages from the first at which a sum can be opened."""

_WITH_SOFT: Final = (Stage.SELECTING, Stage.TRAINING, Stage.UPLOAD)

STEP_STAGES: Final = frozenset(MASKED) - frozenset(PLAIN)
"""Stages at which a device's only message is one of secure aggregation."""


WAITING_TIMES: Final = 4
"""How many times the devices that it asks a cohort remembers that waits for labelled ones."""


@dataclass(frozen=True)
class RoundRules:
    """Rules of one attempt of a round: role, numbers of devices, deadlines.

    `num_selected` devices are asked, `size` of them may report, `min_reports` is the quorum of every stage. From
    `soft_s` of a stage on, where it has one, the quorum is enough. A candidate that has not been heard of for `lease_s`
    is not chosen. `seed` settles the choice among candidates. No stage ends, and no cohort is chosen, without
    `min_labelled` devices that are labelled.
    """

    num_selected: int
    size: int
    min_reports: int
    selecting_s: float
    stages_s: Mapping[Stage, float]
    path: tuple[Stage, ...] = PLAIN
    seed: int = 0
    lease_s: float = 90.0
    min_labelled: int = 0
    soft_s: Mapping[Stage, float] = field(default_factory=dict)

    @classmethod
    def of(cls, task: TaskSpec, *, task_id: TaskId, round_number: RoundNumber, attempt: AttemptNumber) -> RoundRules:
        """Return the rules of one attempt; the seed differs from attempt to attempt and repeats for the same one."""
        digest = hashlib.sha256(f"{task_id}/{task.seed}/{round_number}/{attempt}".encode()).digest()
        cohort, deadlines = task.cohort, task.deadlines
        return cls(
            num_selected=cohort.num_selected,
            size=cohort.size,
            min_reports=cohort.min_reports,
            selecting_s=deadlines.selecting_s,
            stages_s={stage: getattr(deadlines, f"{stage.value}_s") for stage in STEP_OF},
            path=PATHS[task.privacy.secure_aggregation],
            seed=int.from_bytes(digest[:8], "big"),
            min_labelled=cohort.min_labelled,
            soft_s={stage: soft for stage in _WITH_SOFT if (soft := getattr(deadlines, f"{stage.value}_soft_s"))},
        )

    def whole_s(self, stage: Stage) -> float:
        """Return the longest duration of a stage."""
        return self.selecting_s if stage is Stage.SELECTING else self.stages_s[stage]

    def after(self, stage: Stage) -> Stage:
        """Return the stage that follows one of the path; CLOSING after the last."""
        place = self.path.index(stage) + 1
        return self.path[place] if place < len(self.path) else Stage.CLOSING

    def asked(self, stage: Stage) -> Step:
        """Return the step from which devices do their part of a stage of the path."""
        place = self.path.index(stage)
        return STEP_OF[self.path[place - 1]] if place else Step.SELECTED


@dataclass(frozen=True)
class RoundState:
    """All that an attempt remembers. `candidates` maps a device to when it was last heard of.

    `labelled` are those of candidates and participants that said they know whose faces they train on; `line` has all
    other candidates of a round that waits for labelled ones, those first that it would rather keep.
    """

    stage: Stage
    deadline: float
    candidates: Mapping[DeviceId, float] = field(default_factory=dict)
    participants: Mapping[DeviceId, Step] = field(default_factory=dict)
    reason: str = ""
    labelled: frozenset[DeviceId] = frozenset()
    line: Line = ()

    def devices(self, *steps: Step) -> tuple[DeviceId, ...]:
        """Return the participants that are at any of the steps, in order of their ids."""
        return tuple(sorted(device for device, step in self.participants.items() if step in steps))

    def count(self, *steps: Step) -> int:
        """Return the number of participants at any of the steps; every event asks, so it sorts nothing."""
        reached = [*self.participants.values()]
        return sum(reached.count(step) for step in steps)

    def count_labelled(self, *steps: Step) -> int:
        """Return the number of labelled participants at any of the steps."""
        return sum(self.participants.get(device) in steps for device in self.labelled)


# Events: what can happen to a round.


@dataclass(frozen=True)
class CheckedIn:
    """Devices offer to take part; all that are there at once are named at once, so that chance chooses among them.

    `labelled` are those of them that say so of themselves.
    """

    device_ids: frozenset[DeviceId]
    labelled: frozenset[DeviceId] = frozenset()


@dataclass(frozen=True)
class Withdrew:
    """A candidate hung up before it was chosen."""

    device_id: DeviceId


@dataclass(frozen=True)
class Trained:
    """A device has finished its local round."""

    device_id: DeviceId


@dataclass(frozen=True)
class Stepped:
    """A device did its part of a stage of secure aggregation, and it held.

    `is_enough` says that nobody else's part of this stage is needed.
    """

    device_id: DeviceId
    stage: Stage
    is_enough: bool = False


@dataclass(frozen=True)
class Uploaded:
    """A device's whole contribution was checked and lies on stable storage."""

    device_id: DeviceId


@dataclass(frozen=True)
class Dropped:
    """The end of a stage left these devices without a part in the next ones."""

    device_ids: frozenset[DeviceId]


@dataclass(frozen=True)
class Left:
    """A device gave up, or its contribution was refused; `error_code` is a stable code of `mien.errors`."""

    device_id: DeviceId
    error_code: str


@dataclass(frozen=True)
class TimePassed:
    """Passing of time, without another event; the deadline may have passed."""


@dataclass(frozen=True)
class Resumed:
    """The driver was away (a restart): devices get at least `grace_s`, or the whole stage if that is shorter.

    They get no more than the whole stage: the deadline may be by the clock of another machine.
    """

    grace_s: float


@dataclass(frozen=True)
class Cancelled:
    """The operator or the server ends the attempt."""

    reason: str


@dataclass(frozen=True)
class Summed:
    """The sum was taken, its step passed the checks, and the new model is being committed with this very event."""


@dataclass(frozen=True)
class SumFailed:
    """The sum, the step on it, or a stage on the way to it did not pass the checks."""

    reason: str


Event = (
    CheckedIn
    | Withdrew
    | Trained
    | Stepped
    | Uploaded
    | Dropped
    | Left
    | TimePassed
    | Resumed
    | Cancelled
    | Summed
    | SumFailed
)


# Effects: what the driver has to do, in order.


@dataclass(frozen=True)
class Selected:
    """These devices are asked to train; the other candidates are told to come back later."""

    device_ids: tuple[DeviceId, ...]
    passed_over: tuple[DeviceId, ...]


@dataclass(frozen=True)
class StageEntered:
    """The round is at a new stage (or has a new deadline): tell those who follow it."""

    stage: Stage
    deadline: float


@dataclass(frozen=True)
class BecameLate:
    """The round went on without these devices: tell them so; they lose nothing."""

    device_ids: tuple[DeviceId, ...]


@dataclass(frozen=True)
class SumWanted:
    """Add up these devices' contributions, take the server's step, then report `Summed` or `SumFailed`."""

    device_ids: tuple[DeviceId, ...]


Effect = Selected | StageEntered | BecameLate | SumWanted
Transition = tuple[RoundState, tuple[Effect, ...]]


def open_round(rules: RoundRules, now: float) -> Transition:
    """Return the first state of an attempt."""
    state = RoundState(Stage.SELECTING, now + rules.selecting_s)
    return state, (StageEntered(state.stage, state.deadline),)


def wakes_at(rules: RoundRules, state: RoundState, now: float) -> float:
    """Return when time alone can move the round next: its soft deadline, or once that is past the hard one.

    That is now where the soft one passed while the driver was away or busy, and the quorum is there.
    """
    soft = _soft_deadline(rules, state)
    if now < soft:
        return min(soft, state.deadline)
    return min(now, state.deadline) if _has_quorum(rules, state, now) else state.deadline


def advance(rules: RoundRules, state: RoundState, event: Event, now: float) -> Transition:
    """Return the state after `event` and what there is to do about it.

    Repeating an event changes nothing. Raises NotFoundError for a device that was not selected, LateError for one
    that the round went on without, RateLimitedError for a step that is not open yet; the state is then unchanged.
    """
    return _HANDLERS[type(event)](rules, state, event, now)


def _checked_in(rules: RoundRules, state: RoundState, event: CheckedIn, now: float) -> Transition:
    if state.stage is not Stage.SELECTING:
        return state, ()
    state = _joined(rules, state, event, now)
    wanted = rules.min_reports if now >= _soft_deadline(rules, state) else rules.num_selected
    if len(state.candidates) < wanted or lacking(rules, state, now) > 0:
        return state, ()
    fresh = _fresh(rules, state, now)
    if len(fresh) < wanted:  # so that the next one does not look at the silent ones again
        return _without(rules, state, state.candidates.keys() - {*fresh}), ()
    return _select(rules, state, fresh, now)


def _joined(rules: RoundRules, state: RoundState, event: CheckedIn, now: float) -> RoundState:
    """Return the round with the devices of a check-in among its candidates, as far as there is room.

    A cohort that is chosen as soon as enough devices are there has room for all. One that waits for labelled ones
    could wait while a whole population comes: it remembers so many times the others that it asks, and no silent ones,
    whoever came first: those that a keyed hash puts first, which nobody who connects fast or often is helped by.
    """
    named = event.labelled & event.device_ids
    if rules.min_labelled:
        state = _without(rules, state, Candidates.of(state.candidates).silent(now - rules.lease_s))
    before, labelled, line = Candidates.of(state.candidates), state.labelled, state.line
    if named != labelled & event.device_ids:
        labelled = (labelled - event.device_ids) | named
    if not rules.min_labelled:
        return replace(state, candidates=before.heard(event.device_ids, now), labelled=labelled)
    come = {each for each in event.device_ids - named if each not in before or each in state.labelled}
    left = {each for each in named if each in before and each not in state.labelled}
    line, beyond = lined_up(line, rules.seed, come, left, WAITING_TIMES * rules.num_selected)
    candidates = before.without(beyond).heard(event.device_ids - beyond, now)
    return replace(state, candidates=candidates, labelled=labelled, line=line)


def _without(rules: RoundRules, state: RoundState, devices: Collection[DeviceId]) -> RoundState:
    """Return a round that gathers devices without some of its candidates."""
    there = [device for device in devices if device in state.candidates]
    if not there:
        return state
    candidates, labelled = Candidates.of(state.candidates).without(there), state.labelled.difference(there)
    in_line = {device for device in there if device not in state.labelled} if rules.min_labelled else set[DeviceId]()
    line, _ = lined_up(state.line, rules.seed, set(), in_line, len(state.line))
    return replace(state, candidates=candidates, labelled=labelled, line=line)


def _withdrew(rules: RoundRules, state: RoundState, event: Withdrew, _now: float) -> Transition:
    return _without(rules, state, (event.device_id,)), ()


def _trained(rules: RoundRules, state: RoundState, event: Trained, now: float) -> Transition:
    step = _participating(state, event.device_id)
    if _has_reached(step, Step.TRAINED) or step is Step.GONE or state.stage.is_over:
        return state, ()
    if rules.min_labelled and state.stage is Stage.TRAINING and event.device_id not in state.labelled:
        others = _num_done(state) - state.count_labelled(Step.TRAINED)
        if others >= rules.size - rules.min_labelled:  # the places that are left are those of labelled devices
            state, effects = _go_on(rules, _with_step(state, event.device_id, Step.LATE), now)
            return state, (BecameLate((event.device_id,)), *effects)
    return _go_on(rules, _with_step(state, event.device_id, Step.TRAINED), now)


def _stepped(rules: RoundRules, state: RoundState, event: Stepped, now: float) -> Transition:
    return _did_part(rules, state, event.device_id, event.stage, now, is_enough=event.is_enough)


def _uploaded(rules: RoundRules, state: RoundState, event: Uploaded, now: float) -> Transition:
    return _did_part(rules, state, event.device_id, Stage.UPLOAD, now)


def _did_part(
    rules: RoundRules, state: RoundState, device_id: DeviceId, stage: Stage, now: float, *, is_enough: bool = False
) -> Transition:
    step, reached = _participating(state, device_id), STEP_OF[stage]
    if (_has_reached(step, reached) or step is Step.GONE) and state.stage is not Stage.ABORTED:
        return state, ()
    if step in COUNTED and stage in _AFTER_THE_VECTOR and state.stage is not stage and state.stage is not Stage.UPLOAD:
        return state, ()  # its vector is in the sum, which the others' shares open without it
    if stage not in rules.path:
        raise ViolationError(f"this task has no stage {stage}; do what its stage events say")
    if state.stage.is_over or state.stage is Stage.CLOSING:
        raise LateError(f"the round is {state.stage}; nothing is lost, check in again")
    if state.stage is not stage or step is not rules.asked(stage):
        if state.stage in rules.path and rules.path.index(state.stage) > rules.path.index(stage):
            raise LateError("the round went on without this device; nothing is lost, check in again")
        raise RateLimitedError(
            f"the {stage} stage is not open yet; follow the round until it is", retry_after_s=1.0, is_expected=True
        )
    return _go_on(rules, _with_step(state, device_id, reached), now, is_enough=is_enough)


def _dropped(rules: RoundRules, state: RoundState, event: Dropped, now: float) -> Transition:
    if state.stage.is_over:
        return state, ()
    here = {d for d, step in state.participants.items() if step in ORDER or step is Step.GONE}
    gone = tuple(sorted(event.device_ids & here))
    if not gone:
        return state, ()
    state = replace(state, participants={**state.participants, **dict.fromkeys(gone, Step.LATE)})
    counted, labelled = state.count(*COUNTED), state.count_labelled(*COUNTED)
    if state.stage in _AFTER_THE_VECTOR and counted < rules.min_reports:
        state, effects = _too_few(rules, state, f"{counted} devices are left in the sum")
    elif state.stage in _AFTER_THE_VECTOR and labelled < rules.min_labelled:
        state, effects = _too_few_labelled(rules, state, f"{labelled} labelled devices are left in the sum")
    else:
        state, effects = _go_on(rules, state, now)
    return state, (BecameLate(gone), *effects)


def _left(rules: RoundRules, state: RoundState, event: Left, now: float) -> Transition:
    step = state.participants.get(event.device_id)
    if step is None:
        return _withdrew(rules, state, Withdrew(event.device_id), now)
    if step in (Step.LATE, Step.LEFT) or state.stage not in rules.path:
        return state, ()
    if step in COUNTED:
        if rules.path[-1] is Stage.UPLOAD:
            return state, ()
        return _go_on(rules, _with_step(state, event.device_id, Step.GONE), now)  # nobody waits for it any more
    return _go_on(rules, _with_step(state, event.device_id, Step.LEFT), now)


def _time_passed(rules: RoundRules, state: RoundState, _event: TimePassed, now: float) -> Transition:
    if state.stage.is_over or state.stage is Stage.CLOSING:
        return state, ()
    if now < state.deadline and not (now >= _soft_deadline(rules, state) and _has_quorum(rules, state, now)):
        return state, ()
    if state.stage is Stage.SELECTING:
        fresh = _fresh(rules, state, now)
        within = f"checked in within {rules.selecting_s:g} s"
        if len(fresh) < rules.min_reports:
            return _too_few(rules, state, f"{len(fresh)} devices {within}")
        if (num_lacking := lacking(rules, state, now)) > 0:
            return _too_few_labelled(rules, state, f"{rules.min_labelled - num_lacking} labelled devices {within}")
        return _select(rules, state, fresh, now)
    if state.stage not in _AFTER_THE_VECTOR:
        did = f"{_DID[state.stage]} within {rules.stages_s[state.stage]:g} s"
        if (done := _num_done(state)) < rules.min_reports:
            return _too_few(rules, state, f"{done} devices {did}")
        if (labelled := state.count_labelled(*_done_steps(state.stage))) < rules.min_labelled:
            return _too_few_labelled(rules, state, f"{labelled} labelled devices {did}")
    return _next_stage(rules, state, now)


def _resumed(rules: RoundRules, state: RoundState, event: Resumed, now: float) -> Transition:
    if state.stage is Stage.CLOSING:
        return state, (SumWanted(state.devices(*COUNTED)),)
    if state.stage.is_over:
        return state, ()
    whole = rules.whole_s(state.stage)
    deadline = min(max(state.deadline, now + min(event.grace_s, whole)), now + whole)
    return replace(state, deadline=deadline), (StageEntered(state.stage, deadline),)


def _summed(_rules: RoundRules, state: RoundState, _event: Summed, _now: float) -> Transition:
    if state.stage is not Stage.CLOSING:
        return state, ()
    return replace(state, stage=Stage.CLOSED, deadline=math.inf), (StageEntered(Stage.CLOSED, math.inf),)


def _given_up(_rules: RoundRules, state: RoundState, event: Cancelled | SumFailed, _now: float) -> Transition:
    return (state, ()) if state.stage.is_over else _abort(state, event.reason)


# Steps that several events lead to.


def _go_on(rules: RoundRules, state: RoundState, now: float, *, is_enough: bool = False) -> Transition:
    """Return the next state where enough, or too few, devices are left for the stage to end before its deadline.

    In the stages after UPLOAD the sum's members are fixed, and whether enough of them are left to open it depends on
    who neighbours whom: that is for the driver to judge when the stage ends.
    """
    if state.stage not in rules.path:
        return state, ()
    done, waiting = _num_done(state), state.count(rules.asked(state.stage))
    if state.stage not in _AFTER_THE_VECTOR:
        labelled = state.count_labelled(*_done_steps(state.stage), rules.asked(state.stage))
        if done + waiting < rules.min_reports:
            return _too_few(rules, state, f"{done + waiting} devices are left")
        if labelled < rules.min_labelled:
            return _too_few_labelled(rules, state, f"{labelled} labelled devices are left")
    has_quorum = _has_quorum(rules, state, now)
    has_all = state.stage is Stage.TRAINING and done >= rules.size and has_quorum
    is_soft = now >= _soft_deadline(rules, state) and has_quorum
    if has_all or is_enough or is_soft or waiting == 0:
        return _next_stage(rules, state, now)
    return state, ()


def _soft_deadline(rules: RoundRules, state: RoundState) -> float:
    """Return from when on the quorum is enough for the stage; never where it has no soft deadline.

    It keeps its place before the hard one, which a restart may have moved.
    """
    soft_s = rules.soft_s.get(state.stage)
    return math.inf if soft_s is None else state.deadline - rules.whole_s(state.stage) + soft_s


def _has_quorum(rules: RoundRules, state: RoundState, now: float) -> bool:
    """Return whether enough devices, and enough labelled ones, are there for the stage to end."""
    if state.stage is Stage.SELECTING:
        if len(state.candidates) < rules.min_reports or lacking(rules, state, now) > 0:
            return False
        return len(_fresh(rules, state, now)) >= rules.min_reports
    labelled = state.count_labelled(*_done_steps(state.stage))
    return _num_done(state) >= rules.min_reports and (
        labelled >= rules.min_labelled or state.stage in _AFTER_THE_VECTOR  # whose vector is in the sum
    )


def lacking(rules: RoundRules, state: RoundState, now: float) -> int:
    """Return how many labelled devices a round that gathers devices cannot begin without are not there."""
    if not rules.min_labelled:
        return 0
    since = now - rules.lease_s
    fresh = (device for device in state.labelled if state.candidates.get(device, -math.inf) >= since)
    return rules.min_labelled - sum(1 for _ in itertools.islice(fresh, rules.min_labelled))


def _done_steps(stage: Stage) -> Collection[Step]:
    """Return the steps of devices that have done their part of a stage."""
    return COUNTED if stage is Stage.UPLOAD else (STEP_OF[stage],)


def _num_done(state: RoundState) -> int:
    """Return the number of devices that have done their part of the stage."""
    return state.count(*_done_steps(state.stage))


def _next_stage(rules: RoundRules, state: RoundState, now: float) -> Transition:
    """Return the round at its next stage; devices that had not done their part of this one are late.

    A device whose contribution is in the sum stays counted, also where it fell silent afterwards.
    """
    late = () if state.stage in _AFTER_THE_VECTOR else state.devices(rules.asked(state.stage))
    participants = {**state.participants, **dict.fromkeys(late, Step.LATE)}
    following = rules.after(state.stage)
    is_closing = following is Stage.CLOSING
    deadline = math.inf if is_closing else now + rules.stages_s[following]
    state = replace(state, stage=following, deadline=deadline, participants=participants)
    effects: tuple[Effect, ...] = (BecameLate(late),) if late else ()
    if is_closing:
        return state, (*effects, SumWanted(state.devices(*COUNTED)))
    return state, (StageEntered(following, deadline), *effects)


def _select(rules: RoundRules, state: RoundState, fresh: tuple[DeviceId, ...], now: float) -> Transition:
    chosen = choose(fresh, rules.num_selected, rules.seed, state.labelled, rules.min_labelled)
    passed_over = tuple(sorted(set(state.candidates) - set(chosen)))
    participants = dict.fromkeys(chosen, Step.SELECTED)
    deadline = now + rules.stages_s[Stage.TRAINING]
    state = RoundState(Stage.TRAINING, deadline, {}, participants, labelled=state.labelled.intersection(chosen))
    return state, (Selected(chosen, passed_over), StageEntered(state.stage, state.deadline))


def _too_few(rules: RoundRules, state: RoundState, found: str) -> Transition:
    return _abort(state, f"{found}; {rules.min_reports} are needed")


def _too_few_labelled(rules: RoundRules, state: RoundState, found: str) -> Transition:
    return _abort(state, f"{found}; cohort.must_include asks for {rules.min_labelled}")


def _abort(state: RoundState, reason: str) -> Transition:
    state = replace(state, stage=Stage.ABORTED, deadline=math.inf, candidates={}, reason=reason, line=())
    return state, (StageEntered(Stage.ABORTED, math.inf),)


def choose(
    candidates: Iterable[DeviceId],
    count: int,
    seed: int,
    first: Collection[DeviceId] = frozenset(),
    num_first: int = 0,
) -> tuple[DeviceId, ...]:
    """Return `count` of the candidates, each subset equally likely over seeds, in order of their ids.

    `num_first` of them are drawn from those that are `first`; all others then have the same chance.
    """
    ordered, rng = sorted(candidates), np.random.default_rng(seed)
    if len(ordered) <= count:
        return tuple(ordered)
    drawn = {*_drawn([each for each in ordered if each in first], num_first, rng)} if num_first else set[DeviceId]()
    others = _drawn([each for each in ordered if each not in drawn], count - len(drawn), rng)
    return tuple(sorted((*drawn, *others)))


def _drawn(ordered: Sequence[DeviceId], count: int, rng: np.random.Generator) -> tuple[DeviceId, ...]:
    picked = rng.choice(len(ordered), size=min(count, len(ordered)), replace=False)
    return tuple(ordered[i] for i in sorted(picked))


def _fresh(rules: RoundRules, state: RoundState, now: float) -> tuple[DeviceId, ...]:
    since = now - rules.lease_s
    return tuple(device for device, seen in state.candidates.items() if seen >= since)


def _participating(state: RoundState, device_id: DeviceId) -> Step:
    """Return a participant's step; raises for a device that is not, or no longer, in the round."""
    step = state.participants.get(device_id)
    if step is None:
        raise NotFoundError("this device was not selected for that round; check in again")
    if step is Step.LATE:
        raise LateError("the round went on without this device; nothing is lost, check in again")
    if step is Step.LEFT:
        raise LateError("this device has left the round; check in again")
    return step


def _has_reached(step: Step, wanted: Step) -> bool:
    return step in ORDER and ORDER.index(step) >= ORDER.index(wanted)


def _with_step(state: RoundState, device_id: DeviceId, step: Step) -> RoundState:
    return replace(state, participants={**state.participants, device_id: step})


_DID: Final = {
    Stage.TRAINING: "trained",
    Stage.KEYS: "sent keys",
    Stage.SHARES: "shared their keys",
    Stage.UPLOAD: "uploaded",
}

_HANDLERS: Final[dict[type, Callable[[RoundRules, RoundState, Any, float], Transition]]] = {
    CheckedIn: _checked_in,
    Withdrew: _withdrew,
    Trained: _trained,
    Stepped: _stepped,
    Uploaded: _uploaded,
    Dropped: _dropped,
    Left: _left,
    TimePassed: _time_passed,
    Resumed: _resumed,
    Cancelled: _given_up,
    Summed: _summed,
    SumFailed: _given_up,
}
