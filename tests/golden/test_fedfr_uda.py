"""Algorithm 1 of FedFR-UDA, stages 2 and 3, replayed for two rounds by plain float64 loops beside the product's halves.

The recogniser is linear on the 12 means over a crop's quarters, the head CosFace, so that every gradient can be
written down. Eq 3: the source minimises F(theta) + lambda/2 ||theta - theta_r||^2. Line 21: plain mean over clients.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.methods.base import Crops
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, Run, run_task
from tests.tiny import made_up_crops, tiny_linear

pytestmark = pytest.mark.numerics

Matrix = NDArray[np.float64]

SCALE, MARGIN, LR, PRIVATE_LR, DCL, STEPS = 5.0, 0.2, 0.05, 0.02, 3.0, 3
TINY = tiny_linear()
SOURCE = np.concatenate([made_up_crops(3, seed=1), made_up_crops(2, seed=2)])
SOURCE_LABELS = np.array([0, 0, 0, 1, 1])
# Each target holds two identities of other sizes, its crops in no order.
TARGETS = {
    "target1": np.concatenate([made_up_crops(2, seed=3, spread=5), made_up_crops(3, seed=4, spread=5)])[
        [0, 2, 1, 3, 4]
    ],
    "target2": np.concatenate([made_up_crops(4, seed=5, spread=5), made_up_crops(1, seed=6, spread=5)]),
}
TARGET_LABELS = {"target1": [0, 1, 0, 1, 1], "target2": [0, 0, 0, 0, 1]}


def task(*, rounds: int = 2, dcl: float = DCL, **options: object) -> TaskSpec:
    return TaskSpec(
        name="uda",
        method="fedfr_uda",
        rounds=rounds,
        cohort=CohortSpec(size=3, min_reports=2),
        local=LocalSpec(lr=LR, private_lr=PRIVATE_LR, steps=STEPS, flip=False),
        privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
        options={
            "head": "cosface",
            "scale": SCALE,
            "margin": MARGIN,
            "domain_constraint": dcl,
            "clustering": {"distance": 0.2},
            **options,
        },
    )


def product(settings: TaskSpec) -> Run:
    cohort = Cohort({"source": SOURCE, **TARGETS}, labels={"source": SOURCE_LABELS})
    return run_task(settings, TINY.part("*"), 3, TINY.theta, cohort, TINY.runtime())


def quarters(crops: Crops) -> Matrix:
    """Return the mean of each colour in each quarter, colours outermost as in the network: (N, 12)."""
    scaled = (crops.astype(np.float64) - 127.5) / 128
    places = [(c, 56 * i, 56 * j) for c in range(3) for i in (0, 1) for j in (0, 1)]
    return np.array([[image[y : y + 56, x : x + 56, c].mean() for c, y, x in places] for image in scaled])


def unit(x: Matrix) -> Matrix:
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def train(a: Matrix, w: Matrix, x: Matrix, labels: list[int], dcl: float) -> tuple[Matrix, Matrix]:
    """Return A and W after the local steps of CosFace, f = A x / |A x|, all images in every step."""
    received = a
    for _ in range(STEPS):
        slope_a, slope_w = dcl * (a - received), np.zeros_like(w)
        for row, label in zip(x, labels, strict=True):
            z = a @ row
            f = z / np.linalg.norm(z)
            logits = [SCALE * (float(f @ w[k]) - MARGIN * (k == label)) for k in range(len(w))]
            total = math.fsum(math.exp(logit) for logit in logits)
            for k, logit in enumerate(logits):
                slope = SCALE * (math.exp(logit) / total - (k == label)) / len(x)
                slope_a += slope * np.outer((w[k] - (w[k] @ f) * f) / np.linalg.norm(z), row)
                slope_w[k] += slope * (f - (w[k] @ f) * w[k])
        a, w = a - LR * slope_a, unit(w - PRIVATE_LR * slope_w)
    return a, w


def replay(rounds: int, dcl: float, weights: tuple[float, float] = (1, 1)) -> Matrix:
    """Return A after the rounds; clusters are those of the made-up identities, numbered by their first image."""
    clients = {"source": (quarters(SOURCE), SOURCE_LABELS.tolist())}
    clients |= {name: (quarters(crops), TARGET_LABELS[name]) for name, crops in TARGETS.items()}
    a = TINY.theta.astype(np.float64).reshape(3, 12)
    heads = {}
    for name, (x, labels) in clients.items():
        f = unit(x @ a.T)
        heads[name] = unit(np.array([f[np.array(labels) == k].sum(axis=0) for k in range(2)]))
    for _ in range(rounds):
        models, total = [], 0.0
        for name, (x, labels) in clients.items():
            local, heads[name] = train(a, heads[name], x, labels, dcl if name == "source" else 0.0)
            weight = weights[0] if name == "source" else weights[1]
            models.append(weight * local)
            total += weight
        a = np.asarray(sum(models) / total)
    return a


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("dcl", [0.0, DCL])
def test_rounds_of_algorithm_1(rounds: int, dcl: float) -> None:
    run = product(task(rounds=rounds, dcl=dcl))
    np.testing.assert_allclose(run.state.theta.reshape(3, 12), replay(rounds, dcl), atol=2e-6)
    assert np.abs(run.state.theta - TINY.theta).max() > 1e-3


def test_pseudo_labels_are_the_identities() -> None:
    run = product(task(rounds=1))
    for name, labels in TARGET_LABELS.items():
        assert run.cohort.private[name]["labels"].tolist() == labels


def test_the_constraint_holds_the_source_back_and_changes_nothing_else() -> None:
    free, held = replay(1, 0.0), replay(1, DCL)
    start = TINY.theta.astype(np.float64).reshape(3, 12)
    assert np.linalg.norm(held - start) < np.linalg.norm(free - start)
    assert np.abs(product(task(rounds=1, dcl=0.0)).state.theta - product(task(rounds=1)).state.theta).max() > 1e-5


def test_weights_of_source_and_targets() -> None:
    run = product(task(source_weight=1, target_weight=3))
    np.testing.assert_allclose(run.state.theta.reshape(3, 12), replay(2, DCL, (1, 3)), atol=2e-6)
