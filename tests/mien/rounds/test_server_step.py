"""Closing a round: hand-computed means, the bound on the step, and what a task's plan refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.states import ServerStates
from coordinator.store.blobs import BlobStore
from coordinator.store.sealing import MasterKey
from mien.errors import ConfigError, CorruptDataError, NonFiniteError
from mien.layout import ParameterEntry, ParameterLayout, model_id
from mien.methods.base import ServerState
from mien.protocol.canonical import model_from_json, model_to_json
from mien.rounds.plan import TaskPlan, plan_task
from mien.rounds.server_step import (
    MOVED_NOTHING,
    ClosedRound,
    add_up,
    check_step,
    make_candidates,
    take_judged_step,
    take_step,
)
from mien.specs import CohortSpec, FaceInputSpec, ModelSpec, PrivacySpec, ServerSpec, TaskSpec, Threshold
from tests.tiny import SHARD

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
    return plan_task(task, model_to_json(SPEC, LAYOUT), public_shard=SHARD)


def upload(weight: float, losses: tuple[float, float], delta: tuple[float, float]) -> bytes:
    """Return a fedavg contribution: count, weight, weighted losses, weighted delta."""
    values = [1.0, weight, weight * losses[0], weight * losses[1], weight * delta[0], weight * delta[1]]
    return np.array(values, "<f4").tobytes()


def start(task: TaskSpec = TASK) -> ServerState:
    made = plan(task)
    return made.method.server_start(task, made.part, THETA)


def close_round(
    plan: TaskPlan, state: ServerState, contributions: Iterable[tuple[str, bytes]], *, max_step_ratio: float
) -> ClosedRound:
    """Return what a cohort's (device id, contribution) pairs make of a state."""
    return take_step(plan, state, *add_up(plan, contributions), max_step_ratio=max_step_ratio)


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


# Rounds with validators

JUDGED = replace(
    TASK,
    method="pfm_fv",
    privacy=PrivacySpec(("local_models",), 2, secure_aggregation="off"),
    options={"candidates": 2, "mixing": 0.25},
    validators=CohortSpec(size=2, min_reports=2),
)
TRAINED = [
    ("d1", np.array([1, 1, 0.5, 0.25, *(1, 3), *(4, 0), *(12, 0)], "<f4").tobytes()),
    ("d2", np.array([1, 1, 1.5, 0.75, *(3, 1), *(0, 24), *(0, 8)], "<f4").tobytes()),
]
"""Updates (4, 0) and (0, 8), weighted (1, 3) for the first candidate and (3, 1) for the second."""


def scored(*scores: tuple[float, float]) -> list[tuple[str, bytes]]:
    return [(f"v{i}", np.array([1, 1, *each], "<f4").tobytes()) for i, each in enumerate(scores)]


def test_a_hand_computed_round_with_validators() -> None:
    """Candidates move by (1, 6) and (3, 2); the second wins, and a quarter of it is mixed in: (1.5, 5)."""
    made = plan(JUDGED)
    assert made.validators is not None
    total, _ = add_up(made, TRAINED)
    candidates = make_candidates(made, start(JUDGED), total, max_step_ratio=10.0)
    assert candidates.tolist() == [[4.0, 10.0], [6.0, 6.0]]
    scores, _ = add_up(made.validators, scored((1.0, 1.5), (2.0, 2.5)))
    closed = take_judged_step(made, start(JUDGED), total, scores, max_step_ratio=10.0)
    assert closed.state.theta.tolist() == [1.0, 2.0, 4.5, 9.0]
    assert (closed.num_reports, closed.state.rounds) == (2, 1)
    assert closed.metrics == {"score_1": 1.5, "score_2": 2.0}
    same, _ = add_up(made.validators, scored((2.0, 1.0), (2.0, 2.9999999)))
    stays = take_judged_step(made, start(JUDGED), total, same, max_step_ratio=10.0)
    assert stays.state.theta.tolist() == [1.0, 2.0, 4.0, 10.0], "of equals the first: w stays"


def test_a_candidate_that_could_not_become_a_model_is_refused_before_anybody_judges_it() -> None:
    made = plan(JUDGED)
    total, _ = add_up(made, TRAINED)
    with pytest.raises(NonFiniteError, match="max_step_ratio"):
        make_candidates(made, start(JUDGED), total, max_step_ratio=1.0)


def test_validators_have_a_plan_of_their_own() -> None:
    made = plan(JUDGED)
    assert made.validators is not None
    assert [(lane.name, lane.size) for lane in made.validators.contribution.summed][2:] == [("scores", 2)]
    assert made.validators.task.cohort == JUDGED.validators
    assert plan(replace(JUDGED, options={"validation": "off"}, validators=None)).validators is None
    masked = PrivacySpec(("local_models",), 3)
    cohort = CohortSpec(size=3, min_reports=3)
    masks = plan(replace(JUDGED, privacy=masked, cohort=cohort, validators=replace(cohort, size=5)))
    assert masks.validators is not None
    terms = [each.round_config("ab" * 8, 1, 1, "0" * 64) for each in (masks, masks.validators)]
    assert [config.cohort.n_max for config in terms] == [3, 5]
    assert terms[0].task_sha256 != terms[1].task_sha256
    told = masks.round_config("ab" * 8, 1, 1, "0" * 64, shared=b"words")
    assert told.statement_sha256 != terms[0].statement_sha256


def test_a_trainers_total_is_kept_to_the_last_bit_and_sealed(tmp_path: Path) -> None:
    total, _ = add_up(plan(JUDGED), TRAINED)
    total.vector[4] = 1 / 3
    blobs = BlobStore(str(tmp_path))
    states = ServerStates(blobs, MasterKey(bytes(32)))
    sha256 = states.put_total("t1", total)
    again = states.total("t1", sha256, total.layout)
    assert again.vector.tobytes() == total.vector.tobytes()
    assert again.num_reports == 2
    assert total.vector.tobytes()[32:40] not in blobs.read(sha256)
    with pytest.raises(CorruptDataError):
        states.total("t2", sha256, total.layout)
    with pytest.raises(CorruptDataError, match="another form"):
        states.total("t1", sha256, plan().contribution)


def test_state_that_two_tasks_put_alike_stays_until_both_let_it_go(tmp_path: Path) -> None:
    """A task that tidies up must not delete what a step of another, not committed yet, names."""
    blobs = BlobStore(str(tmp_path))
    states, arrays = ServerStates(blobs, MasterKey(bytes(32))), {"momentum": np.ones(3, np.float32)}
    (sha256,) = {states.put_arrays(arrays), states.put_arrays(arrays)}
    assert sha256 is not None
    states.let_go({sha256: 1})
    states.remove({sha256})
    assert states.arrays(sha256)["momentum"].tolist() == [1, 1, 1]
    states.let_go({sha256: 1})
    states.remove({sha256})
    assert not blobs.exists(sha256)


def test_a_round_that_moves_nothing_says_so() -> None:
    still = [("a", upload(1, (0.0, 0.0), (0.0, 0.0))), ("b", upload(3, (0.0, 0.0), (0.0, 0.0)))]
    assert close_round(plan(), start(), still, max_step_ratio=1).metrics[MOVED_NOTHING] == 1.0
    moved = [*still[:1], ("b", upload(3, (1.0, 0.5), (0.5, 0.0)))]
    assert MOVED_NOTHING not in close_round(plan(), start(), moved, max_step_ratio=1).metrics
