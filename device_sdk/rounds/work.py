"""Work of a device in a round: train, sum statistics, measure models, or judge candidates; one record each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from device_sdk.rounds.disclosure import disclosure, judging_disclosure, measuring_disclosure, summing_disclosure
from device_sdk.rounds.judging import stage_of
from mien.contribution import ContributionLayout
from mien.layout import ParameterPart
from mien.methods.base import CANDIDATES, Method
from mien.protocol.rounds import Role
from mien.specs import TaskSpec


class Disclosure(Protocol):
    """Returns the sentences that an owner reads before the work begins."""

    def __call__(
        self, task: TaskSpec, layout: ContributionLayout, *, num_images: int, min_cohort: int, num_people: int
    ) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Work:
    """Kind of work: its words, the notice to an owner before it, and what of a method and its task it goes by.

    `name` and `done` are the kinds of the events at its beginning and end. `task` gives the task as the work's own sum
    sees it, `layout` the contribution's form, `shared` what all devices of the round are told alike.
    """

    name: str
    begins: str
    done: str
    disclose: Disclosure
    task: Callable[[Method, TaskSpec], TaskSpec]
    layout: Callable[[Method, TaskSpec, ParameterPart, int], ContributionLayout]
    shared: Callable[[Method, TaskSpec], tuple[str, ...]]


def _same_task(_method: Method, task: TaskSpec) -> TaskSpec:
    return task


def _methods_layout(method: Method, task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    return method.contribution_layout(task, part, dim)


def _shared_reply(method: Method, task: TaskSpec) -> tuple[str, ...]:
    return method.requirements(task).shared_reply


TRAINING: Final = Work("training", "Training", "trained", disclosure, _same_task, _methods_layout, _shared_reply)
MEASURING: Final = Work(
    "measuring", "Measuring models", "measured", measuring_disclosure, _same_task, _methods_layout, _shared_reply
)
SUMMING: Final = Work(
    "summing", "Summing statistics", "summed", summing_disclosure, _same_task, _methods_layout, _shared_reply
)
JUDGING: Final = Work(
    "judging",
    "Judging candidate models",
    "judged",
    judging_disclosure,
    lambda method, task: stage_of(method, task).validators_task(task),
    lambda method, task, _part, _dim: stage_of(method, task).contribution_layout(task),
    lambda _method, _task: (CANDIDATES,),
)


def work_of(role: Role, method: Method) -> Work:
    """Return the work of a role in a task of this method."""
    if role is Role.VALIDATE:
        return JUDGING
    return TRAINING if method.is_minimised else SUMMING if method.trains else MEASURING
