"""The end of a round as a pure function: contributions in, next server state and model out. A `Closer` runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, Total
from mien.errors import NonFiniteError
from mien.layout import Vector, model_id
from mien.methods.base import ServerState, Validation
from mien.protocol.canonical import model_to_json
from mien.protocol.ids import ModelId
from mien.rounds.plan import TaskPlan

Candidates = NDArray[np.float32]
MOVED_NOTHING: Final = "moved_nothing"
"""Metric of a round that left the model exactly as it was, which only such a round has."""


@dataclass(frozen=True)
class ClosedRound:
    """Result of a round: the server's next state, the model, and weighted means of the scalar lanes.

    `measured` is what a method that trains nothing says of the model, a record to be kept.
    """

    state: ServerState = field(repr=False)
    model_id: ModelId
    spec_json: bytes = field(repr=False)
    num_reports: int
    metrics: Mapping[str, float]
    measured: Mapping[str, Any] | None = None


def add_up(plan: TaskPlan, contributions: Iterable[tuple[str, bytes]]) -> tuple[Total, dict[str, Arrays]]:
    """Return the sum of a cohort's (device id, contribution) pairs, and what its devices showed in clear, by device.

    Pairs are taken one at a time: memory is O(model). Their order decides the last bits of a float64 sum: give them in
    order of device ids.
    """
    total = Total.empty(plan.contribution)
    revealed: dict[str, Arrays] = {}
    for device_id, data in contributions:
        contribution = plan.contribution.parse(data)
        total = total.plus(contribution)
        if plan.contribution.revealed:
            revealed[device_id] = {lane: values.copy() for lane, values in contribution.revealed().items()}
    return total, revealed


def take_step(
    plan: TaskPlan, state: ServerState, total: Total, revealed: Mapping[str, Arrays], *, max_step_ratio: float
) -> ClosedRound:
    """Return the result of a cohort's total, and of what its devices showed in clear, by device.

    Raises NonFiniteError when the new model is not finite or has moved by more than `max_step_ratio` of its own norm.
    """
    after = plan.method.server_step(plan.task, plan.part, state, total, revealed)
    closed = _closed(plan, state, after, total.num_reports, scalar_means(total), max_step_ratio)
    return closed if plan.method.measured is None else replace(closed, measured=plan.method.measured(plan.task, after))


def make_candidates(plan: TaskPlan, state: ServerState, total: Total, *, max_step_ratio: float) -> Candidates:
    """Return the models that validators judge, by their elements of the trained part (T, P) float32.

    Raises NonFiniteError where one of them would be refused as a new model.
    """
    stage = _stage(plan)
    thetas = stage.candidates(plan.task, plan.part, state, total)
    return np.stack([plan.part.gather(check_step(state.theta, theta, max_step_ratio)) for theta in thetas])


def take_judged_step(
    plan: TaskPlan, state: ServerState, total: Total, scores: Total, *, max_step_ratio: float
) -> ClosedRound:
    """Return the result of the trainers' total and of the validators', the mean score of each candidate its metrics.

    Raises NonFiniteError as `take_step` does.
    """
    after = _stage(plan).server_step(plan.task, plan.part, state, total, scores)
    (judged,) = (scores.mean(lane.name) for lane in scores.layout.summed if lane.size > 1)
    metrics = {f"score_{t}": float(mean) for t, mean in enumerate(judged, start=1)}
    return _closed(plan, state, after, scores.num_reports, metrics, max_step_ratio)


def _stage(plan: TaskPlan) -> Validation:
    assert plan.method.validation is not None, "planned with validators"
    return plan.method.validation


def _closed(
    plan: TaskPlan,
    state: ServerState,
    after: ServerState,
    num_reports: int,
    metrics: Mapping[str, float],
    max_step_ratio: float,
) -> ClosedRound:
    theta = check_step(state.theta, after.theta, max_step_ratio)
    if plan.method.trains and not after.lacks and np.array_equal(theta, state.theta):
        metrics = {**metrics, MOVED_NOTHING: 1.0}
    spec = replace(plan.spec, thresholds=())  # a threshold belongs to the model it was measured on
    return ClosedRound(
        state=replace(after, theta=theta, rounds=state.rounds + 1),
        model_id=ModelId(model_id(plan.layout.sha256, theta)),
        spec_json=model_to_json(spec, plan.layout),
        num_reports=num_reports,
        metrics=metrics,
    )


def check_step(before: Vector, after: NDArray[np.floating], max_step_ratio: float) -> Vector:
    """Return the new parameters as float32 if they are finite and near enough to the old ones."""
    theta = np.ascontiguousarray(after, np.float32)
    if theta.shape != before.shape or not np.isfinite(theta).all():
        raise NonFiniteError("the server's step gave parameters that are not finite; the round was not counted")
    moved = float(np.linalg.norm(theta.astype(np.float64) - before))
    bound = max_step_ratio * max(float(np.linalg.norm(before.astype(np.float64))), 1.0)
    if moved > bound:
        raise NonFiniteError(
            f"the server's step has norm {moved:.4g}, more than max_step_ratio allows ({bound:.4g}); "
            "the round was not counted"
        )
    return theta


def scalar_means(total: Total) -> dict[str, float]:
    """Return the weighted mean of every lane of one element; count and weight themselves are left out."""
    lanes = [lane.name for lane in total.layout.summed if lane.size == 1 and lane.name not in ("count", "weight")]
    means = {lane: float(total.mean(lane)[0]) for lane in lanes}
    return {lane: mean for lane, mean in means.items() if np.isfinite(mean)}
