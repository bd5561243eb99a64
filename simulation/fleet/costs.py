"""Cost of one round for a phone in bytes and steps: of its task, of the model, and of secure aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mien.contribution import ContributionLayout
from mien.errors import ConfigError
from mien.layout import ParameterEntry, ParameterLayout, ParameterPart
from mien.methods import find_method
from mien.protocol.ids import AttemptNumber, RoundNumber
from mien.protocol.rounds import Stage
from mien.secagg.planner import RoundIds, StageBytes, largest_group, plan_round, stage_bytes
from mien.specs import TaskSpec
from simulation.faces.models import Model
from simulation.fleet.profile import Work

_NOBODY: Final = RoundIds(bytes(16), RoundNumber(1), AttemptNumber(1), bytes(32), bytes(32))
_DIM: Final = 128


@dataclass(frozen=True)
class RoundCost:
    """Bytes that a phone fetches before it trains, and those of each later stage."""

    model_bytes: int
    stages: Mapping[Stage, StageBytes] = field(repr=False)

    @property
    def sent(self) -> int:
        """Bytes that a phone sends in a round."""
        return sum(stage.sent for stage in self.stages.values())


def round_cost(task: TaskSpec, work: Work, model: Model | None = None) -> RoundCost:
    """Return the cost of a round on a model, or on one of the profile's size.

    Raises ConfigError for a task whose rounds the fleet does not emulate, or whose sums do not fit.
    """
    method = find_method(task.method)
    needed = method.requirements(task)
    if task.validators is not None or needed.validators:
        raise ConfigError("the fleet emulates trainers alone; choose a task without [validators]")
    if task.asynchronous is not None and (why := needed.why_synchronous):
        raise ConfigError(f"method {task.method} has no asynchronous mode: {why}. Leave [asynchronous] out")
    if task.privacy.dp.is_on:
        raise ConfigError(
            "the fleet does not emulate privacy.dp.max_participations, which keeps phones out of later rounds; set "
            "privacy.dp.mechanism to none to try this task's deadlines and cohort"
        )
    if model is None:
        part, dim = _part(task, work), _DIM
        model_bytes = work.model_bytes
    else:
        part = model.layout.part(task.trainable or model.spec.trainable or ("*",))
        dim, model_bytes = model.spec.input.dim, 4 * model.layout.size
    return RoundCost(model_bytes, _stages(task, method.contribution_layout(task, part, dim)))


def _part(task: TaskSpec, work: Work) -> ParameterPart:
    """Return a part of the profile's size, or an adapter where that is what the task is about."""
    if task.trainable == ("adapter.*",):
        weight, bias = ParameterEntry("adapter.weight", (_DIM, _DIM)), ParameterEntry("adapter.bias", (_DIM,))
        return ParameterLayout((weight, bias)).part(task.trainable)
    return ParameterLayout((ParameterEntry("trained", (work.trained_parameters,)),)).part(("*",))


def _stages(task: TaskSpec, contribution: ContributionLayout) -> dict[Stage, StageBytes]:
    if not task.privacy.is_masked:
        return {Stage.UPLOAD: StageBytes(0, contribution.size_bytes)}
    found = stage_bytes(plan_round(task, contribution, _NOBODY), largest_group(task))
    stages = {Stage(name): each for name, each in found.items()}
    upload = stages[Stage.UPLOAD]
    return {**stages, Stage.UPLOAD: StageBytes(upload.received, upload.sent + contribution.revealed_bytes)}
