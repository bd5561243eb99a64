"""A task with all that follows from it: method, model, trained part and the form of a contribution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from mien.contribution import ContributionLayout
from mien.errors import ConfigError
from mien.layout import ParameterLayout, ParameterPart
from mien.log.entries import LogEntry
from mien.methods import METHODS
from mien.methods.base import Method, Property, Requirements, reply_names
from mien.protocol.canonical import model_from_json
from mien.protocol.ids import AttemptNumber, ModelId, RoundNumber, TaskId
from mien.protocol.replies import longest_reply
from mien.protocol.rounds import BlobId
from mien.records import from_mapping
from mien.secagg import RoundConfig
from mien.secagg.groups import MIN_ROBUST_GROUPS
from mien.secagg.noise import require_enforced
from mien.secagg.planner import RoundIds, fewest_hidden, plan_round
from mien.specs import ModelSpec, TaskSpec

MEDIAN_GROUPS: Final = MIN_ROBUST_GROUPS
MEDIAN_SUM: Final = 64
"""Fewest devices of a sum that is made smaller unasked: over fewer, a sum tells who is in it (docs/leakage.md)."""


def with_median(task: TaskSpec, method: Method) -> TaskSpec:
    """Return the task dealt into groups with a median where that costs little, so that one liar carries no sum away.

    For methods that send an update alone, whose elements have a middle; and for cohorts so large that each group's
    sum still hides its devices. Noise would be needed for each group, and validators' scores have no groups; a source
    among devices without labels would be in one group alone.
    """
    privacy, least = task.privacy, max(MEDIAN_SUM, task.privacy.min_cohort)
    is_plain_update = Property.SUM_ONLY in method.properties and Property.REVEALS not in method.properties
    is_plain_update = is_plain_update and not method.requirements(task).validators
    is_plain_update = is_plain_update and Property.UNLABELLED not in method.properties
    is_dealt = is_plain_update and privacy.is_masked and not privacy.dp.is_on
    if not is_dealt or task.cohort.min_reports < MEDIAN_GROUPS * least:
        return task
    return replace(task, privacy=replace(privacy, groups=MEDIAN_GROUPS, group_mean="median"))


@dataclass(frozen=True)
class TaskPlan:
    """Plan of a task for one model; `validators` is the plan for those who judge its candidates, if any do.

    `public_shard` is the SHA-256 of the public faces that come with the model, in hex; empty where none do.
    """

    task: TaskSpec
    method: Method
    spec: ModelSpec
    layout: ParameterLayout
    part: ParameterPart
    contribution: ContributionLayout
    public_shard: str = ""
    validators: TaskPlan | None = None

    @cached_property
    def requirements(self) -> Requirements:
        """Requirements of the task's rounds."""
        return self.method.requirements(self.task)

    @property
    def is_limited(self) -> bool:
        """True if phones count its sums towards their owners' limits: masked ones without noise of their own."""
        return self.task.privacy.is_masked and not self.task.privacy.dp.is_by_phones

    @property
    def reply_names(self) -> frozenset[str]:
        """Names of the arrays that a device of the task may be told (`mien.methods.base.reply_names`)."""
        return reply_names(self.requirements.shared_reply, self.contribution)

    def round_config(
        self,
        task_id: TaskId,
        round_number: RoundNumber,
        attempt: AttemptNumber,
        model_id: ModelId,
        l2_clip: float | None = None,
        *,
        shared: bytes = b"",
    ) -> RoundConfig:
        """Return the configuration of an attempt for its devices; raises ConfigError where its numbers do not fit.

        `shared` are the words that the method's server tells all of them alike.
        """
        ids = self._ids(task_id, round_number, attempt, model_id, shared)
        return plan_round(self.task, self.contribution, ids, l2_clip=l2_clip)

    def round_entry(
        self, task_id: TaskId, round_number: RoundNumber, attempt: AttemptNumber, model_id: ModelId, shared: bytes
    ) -> LogEntry:
        """Return the log's entry of an attempt, whether its sums are masked or not."""
        return self._ids(task_id, round_number, attempt, model_id, shared).entry(self.task, self.contribution)

    def _ids(
        self, task_id: TaskId, round_number: RoundNumber, attempt: AttemptNumber, model_id: ModelId, shared: bytes
    ) -> RoundIds:
        shard = self.public_shard
        return RoundIds.of(
            self.task, task_id, round_number, attempt, self.spec, model_id, public_shard=shard, shared=shared
        )


def plan_task(task: TaskSpec, spec_json: bytes, *, public_shard: BlobId | None) -> TaskPlan:
    """Return the plan of a task that trains the model described by `spec_json`, with which `public_shard` came.

    Raises ConfigError naming the field when the method is unknown, an option is not the method's, a pattern matches no
    tensor, the contribution would reveal what the task has not opted in to, the method needs public faces and none came
    with the model, the task is asynchronous and the method cannot be, the task names validators that the method does
    not need or lacks those that it does, a cohort must include devices that the method tells from no others, the reply
    to a device is too long, or a masked sum over a cohort of the task could wrap.
    """
    method = METHODS.get(task.method)
    if method is None:
        raise ConfigError(f"method is {task.method!r}; known methods: {', '.join(sorted(METHODS))}")
    from_mapping(method.options, task.options, where="options.")
    needed = method.requirements(task)
    if needed.public_faces and public_shard is None:
        raise ConfigError(
            f"method {task.method} needs public faces on every phone, and this model came without: import it with "
            "`model import --public SHARD` (mien-sim data pack makes one), or choose another method or form"
        )
    if task.gates.stages and public_shard is None:
        raise ConfigError(
            "gates.stages has phones judge a release on public faces, and this model came without: import it with "
            "--public, or use gates.share"
        )
    check_must_include(task, method)
    spec, layout = model_from_json(spec_json)
    part = layout.part(task.trainable or spec.trainable or ("*",))
    contribution = method.contribution_layout(task, part, spec.input.dim)
    lanes = ", ".join(lane.name for lane in contribution.revealed)
    if lanes and Property.REVEALS not in method.properties:
        raise ConfigError(f"method {task.method} shows the server {lanes} and has not the property REVEALS; correct it")
    if lanes and not task.privacy.reveals:
        raise ConfigError(f"method {task.method} would show the server {lanes}; name it in privacy.reveals to agree")
    if [lane.size for lane in contribution.summed[:2]] != [1, 1] or [lane.name for lane in contribution.summed[:2]] != [
        "count",
        "weight",
    ]:
        raise ConfigError(f"method {task.method} does not begin its contribution with count and weight; correct it")
    require_enforced(task)
    if task.asynchronous is not None and (why := needed.why_synchronous):
        raise ConfigError(f"method {task.method} has no asynchronous mode: {why}. Leave [asynchronous] out")
    shard = "" if public_shard is None else public_shard.sha256
    plan = TaskPlan(task, method, spec, layout, part, contribution, shard)
    plan = replace(plan, validators=_validators(plan))
    check_reply(plan)
    for each in (plan, plan.validators):
        if each is not None and task.privacy.is_masked:
            # What does not fit is refused now, not in the middle of a round.
            each.round_config(TaskId("0" * 16), RoundNumber(1), AttemptNumber(1), ModelId("0" * 64))
    return plan


def check_must_include(task: TaskSpec, method: Method) -> None:
    """Raise ConfigError where every cohort must include devices that the method tells from no others."""
    if task.cohort.min_labelled:
        check_tells_apart(method)


def check_tells_apart(method: Method) -> None:
    """Raise ConfigError for a method that trains labelled devices as all others: no cohort must include such."""
    if Property.UNLABELLED not in method.properties:
        raise ConfigError(
            f"cohort.must_include names labelled devices, and method {method.name} trains all of its devices alike; "
            "leave it out"
        )


def check_hidden(task: TaskSpec) -> None:
    """Raise ConfigError where sources leave fewer than `privacy.min_cohort` devices of a sum to hide among.

    For tasks that are new: phones hold those of before to their owners' floors.
    """
    cohort, floor = task.cohort, task.privacy.min_cohort
    if cohort.min_labelled and (hidden := fewest_hidden(task)) < floor:
        raise ConfigError(
            f"{cohort.min_labelled} of the {cohort.min_reports} devices (cohort.min_reports) are sources "
            "(cohort.must_include), and whoever runs them knows what they send: the others hide among "
            f"{hidden}, fewer than privacy.min_cohort ({floor}); raise cohort.min_reports to "
            f"{floor + cohort.min_labelled} or more, or lower privacy.min_cohort"
        )


def _validators(plan: TaskPlan) -> TaskPlan | None:
    """Return the validators' plan of a task; raises ConfigError where it and its method differ about them."""
    task, stage = plan.task, plan.method.validation
    if stage is None or not plan.requirements.validators:
        if task.validators is not None:
            raise ConfigError(f"method {task.method} with these options has no validators; leave [validators] out")
        return None
    return replace(plan, task=stage.validators_task(task), contribution=stage.contribution_layout(task))


def check_reply(plan: TaskPlan) -> None:
    """Raise ConfigError where the server tells each device more than devices take, such as a very long momentum."""
    state = plan.method.server_start(plan.task, plan.part, np.zeros(plan.layout.size, np.float32))
    told = plan.method.reply(state, "")
    if odd := told.keys() - plan.reply_names:
        raise ConfigError(
            f"method {plan.method.name} tells devices {', '.join(sorted(odd))}, which is neither in its requirements' "
            "shared_reply nor a lane that the task reveals; devices refuse it: correct the method"
        )
    size_bytes = sum(values.nbytes for values in told.values())
    most = longest_reply(plan.contribution.size)
    if size_bytes > most:
        raise ConfigError(
            f"method {plan.method.name} tells each device {size_bytes / 1e6:.1f} MB with its assignment, and devices "
            f"take {most / 1e6:.1f} MB, about as much as they send; shorten the method's reply"
        )
