"""Closing a round: hand-computed means, the bound on the step, and what a task's plan refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coordinator.rounds.plan import TaskPlan, plan_task
from coordinator.rounds.server_step import check_step, close_round
from mien.errors import ConfigError, CorruptDataError, NonFiniteError
from mien.layout import ParameterEntry, ParameterLayout, model_id
from mien.methods.base import ServerState
from mien.specs import CohortSpec, FaceInputSpec, ModelSpec, PrivacySpec, ServerSpec, TaskSpec, Threshold
from mien.wire.canonical import model_from_json, model_to_json

LAYOUT = ParameterLayout((ParameterEntry("a", (2,)), ParameterEntry("b", (1, 2))))
SPEC = ModelSpec(
    "tiny",
    LAYOUT.sha256,
    FaceInputSpec(dim=2),
    "made up",
    "none",
    ("b",),
    (Threshold(0.5, 0.001, "set", 10, 10, "0" * 64, "2026-01-01"),),
)
TASK = TaskSpec(
    "t",
    method="fedavg",
    cohort=CohortSpec(size=2, min_reports=2),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)
THETA = np.array([1.0, 2.0, 3.0, 4.0], np.float32)


def plan(task: TaskSpec = TASK) -> TaskPlan:
    return plan_task(task, model_to_json(SPEC, LAYOUT), has_public_faces=True)


def upload(weight: float, losses: tuple[float, float], delta: tuple[float, float]) -> bytes:
    """Return a fedavg contribution: count, weight, weighted losses, weighted delta."""
    values = [1.0, weight, weight * losses[0], weight * losses[1], weight * delta[0], weight * delta[1]]
    return np.array(values, "<f4").tobytes()


def start(task: TaskSpec = TASK) -> ServerState:
    made = plan(task)
    return made.method.server_start(task, made.part, THETA)


def test_a_hand_computed_round() -> None:
    """Weights 1 and 3, deltas (4, 0) and (0, 8): the mean is (1, 6); losses 1 and 2 give 1.75."""
    contributions = [("d1", upload(1, (1.0, 0.5), (4.0, 0.0))), ("d2", upload(3, (2.0, 0.5), (0.0, 8.0)))]
    closed = close_round(plan(), start(), contributions, max_step_ratio=10.0)
    assert closed.state.theta.tolist() == [1.0, 2.0, 4.0, 10.0]
    assert closed.metrics == {"loss_before": 1.75, "loss_after": 0.5}
    assert (closed.num_reports, closed.state.rounds) == (2, 1)
    assert closed.model_id == model_id(LAYOUT.sha256, np.array([1, 2, 4, 10], np.float32))
    spec, layout = model_from_json(closed.spec_json)
    assert layout == LAYOUT
    assert spec == replace(SPEC, thresholds=())  # the old model's thresholds say nothing about the new one


def test_momentum_carries_over_rounds() -> None:
    task = replace(TASK, server=ServerSpec(lr=0.5, momentum=0.5))
    once = close_round(plan(task), start(task), [("d", upload(1, (0, 0), (2.0, 4.0)))], max_step_ratio=10.0)
    assert once.state.theta.tolist() == [1.0, 2.0, 4.0, 6.0]
    twice = close_round(plan(task), once.state, [("d", upload(1, (0, 0), (0.0, 0.0)))], max_step_ratio=10.0)
    assert twice.state.theta.tolist() == [1.0, 2.0, 4.5, 7.0]


def test_a_step_that_is_too_large_or_not_finite_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="max_step_ratio"):
        close_round(plan(), start(), [("d", upload(1, (0, 0), (100.0, 0.0)))], max_step_ratio=1.0)
    for bad in (np.array([1, 2, np.nan, 4]), np.array([1, 2, np.inf, 4]), np.array([1.0, 2.0])):
        with pytest.raises(NonFiniteError):
            check_step(THETA, bad, 10.0)
    norm = float(np.linalg.norm(THETA))
    moved = THETA.astype(np.float64) + np.array([0.999 * norm, 0, 0, 0])
    assert check_step(THETA, moved, 1.0).dtype == np.float32
    with pytest.raises(NonFiniteError):
        check_step(THETA, THETA.astype(np.float64) + np.array([1.001 * norm, 0, 0, 0]), 1.0)


def test_damaged_contributions_never_enter_a_sum() -> None:
    with pytest.raises(CorruptDataError):
        close_round(plan(), start(), [("d", b"1234")], max_step_ratio=1.0)


def test_plans_name_what_is_wrong() -> None:
    assert plan().part.names == ("b",)
    assert plan(replace(TASK, trainable=("a",))).part.names == ("a",)
    for task, words in (
        (replace(TASK, method="fedavgg"), "method is 'fedavgg'"),
        (replace(TASK, options={"margn": 1.0}), "options.margn"),
        (replace(TASK, trainable=("c*",)), "c\\*"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan(task)


def test_what_is_revealed_needs_the_tasks_consent() -> None:
    assert plan(replace(TASK, method="fedface")).contribution.revealed == ()
    agreed = replace(
        TASK,
        method="fedface",
        privacy=PrivacySpec(reveals=("class_embeddings",), min_cohort=2, secure_aggregation="off"),
    )
    assert [lane.name for lane in plan(agreed).contribution.revealed] == ["class_embedding"]
