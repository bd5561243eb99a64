"""Asynchronous mode's rules: hand-computed weights, the bound on staleness, who may be in flight, which methods may."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mien.contribution import ContributionLayout, Total
from mien.errors import ConfigError, LateError
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods import METHODS
from mien.methods.averaging import update_lanes
from mien.methods.base import ServerState
from mien.rounds.buffered import Flight, is_overdue, may_open, overdue_in_words, staleness, weighed, weight
from mien.specs import (
    AsynchronousSpec,
    CohortSpec,
    DpSpec,
    GateSpec,
    PrivacySpec,
    ServerSpec,
    TaskSpec,
    from_mapping,
    to_mapping,
)

LAYOUT = ParameterLayout((ParameterEntry("w", (2,)), ParameterEntry("frozen", (1,))))
PART = LAYOUT.part(("w",))
ALLOWED = ("fedavg", "fedprox", "fixed_embedding", "fedface", "fedaws", "fedgc")


def task(**changes: Any) -> TaskSpec:
    return TaskSpec("t", **{"method": "fedavg", "asynchronous": AsynchronousSpec(), **changes})


def total_of(weights: list[float], deltas: list[list[float]]) -> Total:
    """Return a cohort's total by hand: counts, weights, losses of 1, and w times delta."""
    w = np.array(weights, float)
    vector = np.concatenate([[len(w), w.sum(), w.sum(), w.sum()], (w[:, None] * np.array(deltas)).sum(axis=0)])
    return Total(ContributionLayout(update_lanes(PART)), vector, len(w))


@pytest.mark.parametrize(
    ("exponent", "tau", "expected"),
    [(0.5, 0, 1.0), (0.5, 1, 0.7071067811865475), (0.5, 3, 0.5), (1.0, 3, 0.25), (0.0, 99, 1.0), (2.0, 2, 1 / 9)],
)
def test_weights_by_hand(exponent: float, tau: int, expected: float) -> None:
    assert weight(AsynchronousSpec(staleness_exponent=exponent), tau) == pytest.approx(expected, rel=1e-15)


def test_a_stale_sum_moves_the_newest_model_by_its_weight_and_its_images_still_count() -> None:
    """(3 (1, 0) + 1 (1, 4)) / 4 = (1, 1); tau = 3 halves it: theta (10, 20) becomes (10.5, 20.5)."""
    spec = AsynchronousSpec(staleness_exponent=0.5)
    whole = total_of([3, 1], [[1, 0], [1, 4]])
    before = whole.vector.copy()
    half = weighed(spec, whole, version=5, base=2)
    assert staleness(5, 2) == 3
    assert (whole.vector == before).all()
    assert half["weight"] == [4]
    assert half.mean("loss_after") == [1.0]
    state = ServerState(np.array([10, 20, 7], np.float32), {"momentum": np.zeros(2, np.float32)})
    after = METHODS["fedavg"].server_step(task(), PART, state, half, {})
    assert after.theta.tolist() == [10.5, 20.5, 7]


def test_the_servers_momentum_takes_up_the_weighted_update() -> None:
    """m = 0.5 (2, 0) + s (1, 1) with s = 1/2 is (1.5, 0.5); theta moves by 2 m."""
    spec = task(server=ServerSpec(lr=2.0, momentum=0.5))
    state = ServerState(np.zeros(3, np.float32), {"momentum": np.array([2, 0], np.float32)})
    assert spec.asynchronous is not None
    total = weighed(spec.asynchronous, total_of([3, 1], [[1, 0], [1, 4]]), 3, 0)
    after = METHODS["fedavg"].server_step(spec, PART, state, total, {})
    assert after.arrays["momentum"].tolist() == [1.5, 0.5]
    assert after.theta.tolist() == [3.0, 1.0, 0.0]


def test_over_the_bound_a_sum_is_refused_in_words() -> None:
    spec = AsynchronousSpec(max_staleness=2)
    assert not is_overdue(spec, 4, 2)
    assert is_overdue(spec, 5, 2)
    with pytest.raises(LateError, match=r"3 models were made since this cohort.s, more than .* allows \(2\)"):
        weighed(spec, total_of([1], [[1, 1]]), 5, 2)
    assert "discarded" in overdue_in_words(spec, 5, 2)


def test_who_may_be_in_flight() -> None:
    spec = task(rounds=5, asynchronous=AsynchronousSpec(max_concurrency=3))
    assert may_open(spec, 0, [])
    assert may_open(spec, 0, [Flight(1, 0), Flight(2, 0)])
    assert not may_open(spec, 0, [Flight(1, 0), Flight(2, 0), Flight(3, 0)])
    assert not may_open(spec, 0, [Flight(1)]), "one gathers at a time"
    assert may_open(spec, 3, [Flight(4, 2)])
    assert not may_open(spec, 4, [Flight(5, 3)]), "the last model is on its way"
    assert not may_open(spec, 5, [])


@pytest.mark.parametrize("name", ALLOWED)
def test_methods_that_allow_it(name: str) -> None:
    spec = task(method=name)
    assert METHODS[name].requirements(spec).why_synchronous == ""
    assert [lane.name for lane in METHODS[name].contribution_layout(spec, PART, 4).summed][-1] == "delta"


def test_fedfr_allows_it_without_a_head_for_all() -> None:
    options = {"public_classes": 4, "aggregate_public_head": False}
    assert METHODS["fedfr"].requirements(task(method="fedfr", options=options)).why_synchronous == ""


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("scaffold", {}, "control variates"),
        ("mime", {}, "momentum"),
        ("pfm_fv", {}, "momentum"),
        ("fedfr", {"options": {"public_classes": 4}}, "Phi"),
        ("fedfr_uda", {}, "labelled source"),
        ("fedface", {"options": {"moment": {"every": 1}}}, "moments"),
        ("fedface", {"privacy": PrivacySpec(reveals=("class_embeddings",))}, "private form"),
        ("fedaws", {"privacy": PrivacySpec(reveals=("class_embeddings",))}, "private form"),
        ("fedgc", {"options": {"moment": {"every": 1}}}, "moments"),
    ],
)
def test_methods_that_do_not_say_why(name: str, changes: dict[str, Any], reason: str) -> None:
    assert reason in METHODS[name].requirements(task(method=name, **changes)).why_synchronous


def test_a_method_that_says_nothing_is_refused() -> None:
    silent = replace(METHODS["fedavg"], requirements=type(METHODS["fedavg"]).requirements)
    assert silent.requirements(task()).why_synchronous != ""


def test_what_goes_with_it_and_what_does_not() -> None:
    dp = DpSpec("central_gaussian", 1.0, 1.0, 1e-5, 1)
    with pytest.raises(ConfigError, match="no accounting"):
        task(privacy=PrivacySpec(max_weight=1, dp=dp), trainable=("w",))
    with pytest.raises(ConfigError, match="validators"):
        task(validators=CohortSpec())
    with pytest.raises(ConfigError, match="rollback"):
        task(gates=GateSpec(every=1, on_failure="rollback"))
    task(gates=GateSpec(every=1))
    task(gates=GateSpec(on_failure="rollback"))
    for wrong in ({"max_concurrency": 0}, {"max_concurrency": 65}, {"max_staleness": -1}, {"staleness_exponent": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            AsynchronousSpec(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="staleness_exponent"):
        AsynchronousSpec(staleness_exponent=math.nan)


def test_a_task_file_may_say_so() -> None:
    spec = from_mapping(TaskSpec, {"name": "t", "method": "fedavg", "asynchronous": {"max_concurrency": 4}})
    assert spec.asynchronous == AsynchronousSpec(max_concurrency=4)
    assert from_mapping(TaskSpec, to_mapping(spec)) == spec
    assert "asynchronous" not in to_mapping(TaskSpec("t"))
