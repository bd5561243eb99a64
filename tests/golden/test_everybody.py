"""FedFace's softmax against everybody over whole rounds by plain float64 loops, with phones that come and go.

The recogniser is linear on the 12 means over a crop's quarters; this file shares no arithmetic with `mien`.
"""

from __future__ import annotations

import numpy as np
import pytest

from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engines.engine import Cohort, run_task, select
from tests.golden.test_fedface import Matrix, quarters, unit
from tests.tiny import made_up_crops, tiny_linear

pytestmark = pytest.mark.numerics

SCALE, MARGIN, LR, ROUNDS, SERVER_LR, MOMENTUM, MIN_REPORTS = 4.0, 0.3, 0.2, 5, 0.8, 0.5, 3
CLIENTS = {f"phone{k}": made_up_crops(2 + k % 3, seed=k) for k in range(5)}


def local_steps(a: Matrix, w: Matrix, x: Matrix, others: list[Matrix], num_steps: int) -> Matrix:
    """Return A after steps down mean_j softplus(s z.mu + s^2/2 z'Bz + log n - s (z.w - m)); of none they lie evenly."""
    num, mu, covariance = MIN_REPORTS - 1, np.zeros(3), np.eye(3) / 3
    if others:
        num, mu = len(others), sum(others, np.zeros(3)) / len(others)
        covariance = sum((np.outer(v, v) for v in others), np.zeros((3, 3))) / num - np.outer(mu, mu)
    for _ in range(num_steps):
        gradient = np.zeros_like(a)
        for row in x:
            y = a @ row
            z = y / np.linalg.norm(y)
            everybody = SCALE * float(z @ mu) + SCALE**2 / 2 * float(z @ covariance @ z) + np.log(num)
            sigmoid = 1 / (1 + np.exp(-(everybody - SCALE * (float(z @ w) - MARGIN))))
            slope = sigmoid * (SCALE * mu + SCALE**2 * covariance @ z - SCALE * w) / len(x)
            gradient += np.outer((slope - (slope @ z) * z) / np.linalg.norm(y), row)
        a = a - LR * gradient
    return a


def replay(a: Matrix, cohorts: list[tuple[str, ...]], num_steps: int) -> Matrix:
    """Return A after a round with each of the cohorts, each against the moments of the one before."""
    features = {name: quarters(crops) for name, crops in CLIENTS.items()}
    opened: dict[str, Matrix] = {}
    velocity, earlier = np.zeros_like(a), a
    for cohort in cohorts:
        shown = {name: unit(unit(features[name] @ a.T).mean(axis=0)) for name in cohort}
        change, weight = np.zeros_like(a), 0
        for name in cohort:
            others = [v for peer, v in opened.items() if peer != name]
            # All class embeddings are of the round before's model, also of a phone that was not there.
            n, own = len(features[name]), unit(unit(features[name] @ earlier.T).mean(axis=0))
            change, weight = change + n * (local_steps(a, own, features[name], others, num_steps) - a), weight + n
        velocity = MOMENTUM * velocity + change / weight
        earlier, a = a, a + SERVER_LR * velocity
        opened = shown
    return a


@pytest.mark.parametrize(("size", "num_steps"), [(5, 1), (3, 1), (4, 3)])
def test_rounds_against_everybody(size: int, num_steps: int) -> None:
    """All phones in every round, or some of them, of whom some are in the last sum and some are not."""
    tiny = tiny_linear()
    task = TaskSpec(
        name="golden",
        method="fedface",
        rounds=ROUNDS,
        cohort=CohortSpec(size=size, min_reports=MIN_REPORTS),
        local=LocalSpec(lr=LR, flip=False, epochs=num_steps),
        server=ServerSpec(lr=SERVER_LR, momentum=MOMENTUM),
        privacy=PrivacySpec(reveals=("class_moment",), min_cohort=3),
        options={"private_form": "everybody", "everybody": {"scale": SCALE, "margin": MARGIN}},
    )
    cohorts = [select(task, tuple(sorted(CLIENTS)), number) for number in range(1, ROUNDS + 1)]
    assert size == len(CLIENTS) or len(set(cohorts)) > 1
    start = tiny.theta.astype(np.float64).reshape(3, 12)
    expected = replay(start, cohorts, num_steps)
    run = run_task(task, tiny.part("*"), 3, tiny.theta, Cohort(CLIENTS), tiny.runtime())
    assert np.abs(expected - start).max() > 1e-2
    np.testing.assert_allclose(run.state.theta.reshape(3, 12), expected, atol=5e-6)
