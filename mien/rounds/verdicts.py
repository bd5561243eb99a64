"""Consequences of a round's end and of a gate's verdict, as pure functions: hold, go on, pause or take back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mien.evaluation.rollout_spec import FleetGates, RollOutSpec
from mien.methods import find_method
from mien.protocol.ids import RoundNumber
from mien.protocol.rounds import Role
from mien.rounds.records import CandidateRecord, CandidateState, EvaluationRecord, ModelRecord, TaskRecord, TaskState
from mien.specs import TaskSpec


@dataclass(frozen=True)
class Verdict:
    """Verdict of the gates: all reasons against a candidate (none: it passes), or the problem that kept them from one.

    `evaluations` are the measurements that they judged by, `spec_json` its description with thresholds measured on it.
    """

    candidate: CandidateRecord
    reasons: tuple[str, ...] = ()
    problem: str = ""
    evaluations: tuple[EvaluationRecord, ...] = field(default=(), repr=False)
    spec_json: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Decision:
    """Decision on a verdict; `candidate` is None where there was none, `release_share` 0 for no release.

    With a `roll_out` that share is the first of its stages.
    """

    task: TaskRecord
    candidate: CandidateRecord | None = None
    release_share: float = 0.0
    roll_out: RollOutSpec | None = None


def offered(
    spec: TaskSpec, task: TaskRecord, model: ModelRecord, *, has_gates: bool, now_ms: int
) -> CandidateRecord | None:
    """Return a closed round's model as a candidate where it is due to be one; `task` is as it is after the round."""
    if model.task_id != task.task_id or not spec.gates.is_due(task.rounds_closed, spec.rounds):
        return None  # a round that only measured has made no model
    state = CandidateState.WAITING if has_gates else CandidateState.UNCHECKED
    goes_back = not find_method(spec.method).adds_up
    return CandidateRecord(
        model.model_id,
        task.task_id,
        RoundNumber(task.rounds_closed),
        state,
        now_ms,
        task.arrays_sha256 if goes_back else None,
        task.revealed_sha256 if goes_back else None,
    )


def after_round(
    spec: TaskSpec, task: TaskRecord, candidate: CandidateRecord | None, now_ms: int, lacks: str = ""
) -> TaskRecord:
    """Return a task after a round that closed: held while the gates judge its model, over after its last round.

    `lacks` says why there is no model of its rounds yet: a task that ends so has failed.
    """
    if candidate is not None and candidate.state is CandidateState.WAITING:
        return replace(task, state=TaskState.CHECKING) if task.state is TaskState.RUNNING else task
    if task.rounds_closed < spec.rounds:
        return task
    return task.ended(TaskState.FAILED if lacks else TaskState.DONE, lacks, now_ms)


def after_abort(task: TaskRecord, reason: str, *, role: Role, max_aborted: int) -> TaskRecord:
    """Return a task after an attempt was aborted: paused, with the reason, after `max_aborted` of them in a row."""
    aborted = task.aborted_in_a_row + 1
    task = replace(task, aborted_in_a_row=aborted)
    if aborted < max_aborted or task.state is not TaskState.RUNNING:
        return task
    whose = "" if role is Role.TRAIN else " of validators"
    text = f"{aborted} attempts{whose} in a row were aborted, the last because {reason}; mend that, then task resume"
    return replace(task, state=TaskState.PAUSED, reason=text)


def decide(
    spec: TaskSpec, task: TaskRecord, verdict: Verdict, passed_before: CandidateRecord | None, now_ms: int
) -> Decision:
    """Return the decision on a task; `passed_before` is what there is to go back to besides its first model.

    A task that somebody paused meanwhile stays so unless it is over. Rounds that are taken back count: they were run,
    and what they opened stays in the privacy ledger.
    """
    offer = verdict.candidate
    name = f"model {offer.model_id[:12]} of round {offer.round}"
    if verdict.problem:
        reason = f"{name} could not be checked: {verdict.problem}; mend that, then task resume"
        return Decision(replace(task, state=TaskState.PAUSED, reason=reason))
    is_over = offer.round >= spec.rounds
    if not verdict.reasons:
        passed = replace(offer, state=CandidateState.PASSED, reason="", decided_ms=now_ms)
        state = TaskState.RUNNING if task.state is TaskState.CHECKING else task.state
        after = task.ended(TaskState.DONE, "", now_ms) if is_over else replace(task, state=state)
        if spec.gates.release != "automatic":
            return Decision(after, passed)
        if not spec.gates.stages:
            return Decision(after, passed, spec.gates.share)
        return Decision(after, passed, spec.gates.stages[0], roll_out_of(spec))
    against = "; ".join(verdict.reasons)
    failed = replace(offer, state=CandidateState.FAILED, reason=against, decided_ms=now_ms)
    if spec.gates.on_failure == "rollback":
        back, which = _taken_back(task, passed_before)
        if find_method(spec.method).adds_up and not is_over:  # what is summed is so, and cohorts are of one model
            back, which = task, "waiting for more phones, whose sums add up"
        reason = f"{name} failed its gates ({against}); went back to {which}"
        state = TaskState.RUNNING if task.state is TaskState.CHECKING else task.state
        after = back.ended(TaskState.DONE, reason, now_ms) if is_over else replace(back, state=state, reason=reason)
        return Decision(after, failed)
    reason = f"{name} failed its gates: {against}"
    if is_over:
        return Decision(task.ended(TaskState.FAILED, reason, now_ms), failed)
    reason += "; task resume goes on from it all the same, task cancel ends the task"
    return Decision(replace(task, state=TaskState.PAUSED, reason=reason), failed)


def roll_out_of(spec: TaskSpec) -> RollOutSpec:
    """Return the staged roll-out that a task's gates ask for: cohorts like its own, judged by the same measures.

    No source need be among phones that compare.
    """
    gates = spec.gates
    judged_by = FleetGates(
        fmr=gates.fmr,
        delta=gates.delta,
        max_cosine_rise=gates.max_cosine_rise,
        min_rank_share=gates.min_rank_share,
    )
    return RollOutSpec(
        gates.stages,
        spec.population,
        min_cohort=max(spec.privacy.min_cohort, 3),
        cohort=replace(spec.cohort, must_include=None),
        gates=judged_by,
    )


def resumed(candidate: CandidateRecord | None) -> TaskState:
    """Return the state in which a paused task goes on: a candidate that waits is judged first."""
    return TaskState.RUNNING if candidate is None else TaskState.CHECKING


def _taken_back(task: TaskRecord, passed: CandidateRecord | None) -> tuple[TaskRecord, str]:
    """Return a task on the last model that passed, or its first one, and that model's name in words."""
    if passed is None:
        back = replace(task, model_id=task.base_model_id, arrays_sha256=None, revealed_sha256=None)
        return back, "the model that the task began with"
    back = replace(
        task, model_id=passed.model_id, arrays_sha256=passed.arrays_sha256, revealed_sha256=passed.revealed_sha256
    )
    return back, f"model {passed.model_id[:12]} of round {passed.round}"
