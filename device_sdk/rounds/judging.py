"""A validator's part of a round: candidates for the next model, judged on faces that this device does not train on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays
from mien.errors import ConfigError, CorruptDataError, ViolationError
from mien.layout import ParameterPart, Vector
from mien.methods.base import CANDIDATES, Crops, DeviceOutput, Method, Runtime, Validation, ValidationInput
from mien.methods.check_reply import told
from mien.protocol.rounds import Role
from mien.specs import TaskSpec

JUDGED: Final = "judged"
"""Kept with the private state of faces that judged a task: they never train in it."""


@dataclass(frozen=True)
class Judged:
    """Work of a validator: candidates, as told, for a model's trained part, on its faces with private state."""

    task: TaskSpec
    part: ParameterPart
    theta: Vector = field(repr=False)
    told: Arrays = field(repr=False)
    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] | None = field(repr=False)
    private: Arrays = field(repr=False)


def stage_of(method: Method, task: TaskSpec) -> Validation:
    """Return the stage in which validators judge; raises ViolationError for a task that has none."""
    if method.validation is None or not method.requirements(task).validators:
        raise ViolationError(f"task {task.name!r} has no validators, and the coordinator asks for one; leave the round")
    return method.validation


def check_can_judge(methods: Iterable[Method], labels: NDArray[np.int64]) -> None:
    """Raise ConfigError for pictures, of these people each, on which no candidate of these methods can be judged.

    Before the coordinator is asked: it would count on such a device in every attempt, and each time lose it.
    """
    refused: ConfigError | None = None
    for stage in [method.validation for method in methods if method.validation is not None]:
        try:
            stage.faces(np.zeros((len(labels), 1, 1, 3), np.uint8), labels)  # whose pictures, and not what is on them
        except ConfigError as error:
            refused = error
        else:
            return
    if refused is not None:
        raise refused


def check_role(asked: Role, offered: Role) -> None:
    """Raise ViolationError where a coordinator asks for something else than the device offered to do."""
    if asked is not offered:
        raise ViolationError(
            f"the coordinator asks this phone to {asked.value}, and it offered to {offered.value} only; leave the "
            "round, and tell the operator"
        )


def check_apart(role: Role, private: Arrays, method: Method, done: frozenset[Role]) -> None:
    """Raise ConfigError for faces that would judge what they train, or train what they judge.

    `done` is what any of them did in the task before; their `private` state tells it too, kept by whatever version.
    """
    if role is Role.VALIDATE and (Role.TRAIN in done or any(name in private for name in method.per_identity)):
        raise ConfigError("these faces train in this task, so they cannot judge it; validate from a home of its own")
    if role is Role.TRAIN and (Role.VALIDATE in done or JUDGED in private):
        raise ConfigError(
            "these faces judge this task's candidates, so they do not train; keep to `validate=True` here"
        )


def judge(stage: Validation, work: Judged, runtime: Runtime) -> DeviceOutput:
    """Return a validator's contribution, its scores alone, and what it keeps.

    Raises CorruptDataError for candidates that cannot be, ConfigError or UndefinedMetricError for faces that cannot
    judge: too few people, or too few pictures of them.
    """
    labels = np.zeros(len(work.crops), np.int64) if work.labels is None else work.labels
    faces = stage.faces(work.crops, labels)
    output = stage.validate(ValidationInput(work.task, _candidates(work), faces, work.private), runtime)
    return replace(output, private={**output.private, JUDGED: np.ones(1, np.float32)})


def _candidates(work: Judged) -> tuple[Vector, ...]:
    rows = told(work.told, CANDIDATES, (None, work.part.size))
    if rows is None:
        raise CorruptDataError("the coordinator told no candidates to judge; leave the round, and tell the operator")
    return tuple(work.part.scatter(work.theta, np.ascontiguousarray(row, np.float32)) for row in rows)
