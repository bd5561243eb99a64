"""Algorithm 1 of FedFace replayed for two rounds by plain float64 loops, beside the product's two halves.

The recogniser is linear on the 12 means over a crop's quarters, so that every gradient can be written down; this file
shares no arithmetic with `mien`.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.methods.base import Crops
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
from tests.tiny import made_up_crops, tiny_linear

pytestmark = pytest.mark.numerics

Matrix = NDArray[np.float64]

MARGIN, LR, PRIVATE_LR = 0.9, 0.05, 0.03
SPREAD_MARGIN, SPREAD_LR, SPREAD_STEPS, SPREAD_MOMENTUM = 0.2, 0.02, 2, 0.5
CLIENTS = {"ada": made_up_crops(2, seed=1), "bo": made_up_crops(3, seed=2), "cy": made_up_crops(5, seed=3)}
MAX_WEIGHT = 4  # caps cy's five images


def quarters(crops: Crops) -> Matrix:
    """Return the mean of each colour in each quarter, colours outermost as in the network: (N, 12)."""
    scaled = (crops.astype(np.float64) - 127.5) / 128
    places = [(c, 56 * i, 56 * j) for c in range(3) for i in (0, 1) for j in (0, 1)]
    return np.array([[image[y : y + 56, x : x + 56, c].mean() for c, y, x in places] for image in scaled])


def unit(x: Matrix) -> Matrix:
    scaled: Matrix = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return scaled


def local_step(a: Matrix, w: Matrix, x: Matrix) -> tuple[Matrix, Matrix]:
    """Return line 6: one gradient step of mean_j max(0, m - w.f_j)^2 on A and w, where f = A x / |A x|."""
    gradient_a, gradient_w = np.zeros_like(a), np.zeros_like(w)
    for row in x:
        z = a @ row
        f = z / np.linalg.norm(z)
        slope = -2.0 * max(0.0, MARGIN - float(w @ f)) / len(x)
        # d(w.f)/dz = (w - (w.f) f) / |z|; d(w.f)/dw at |w| = 1 likewise.
        gradient_a += slope * np.outer((w - (w @ f) * f) / np.linalg.norm(z), row)
        gradient_w += slope * (f - (w @ f) * w)
    return a - LR * gradient_a, unit(w - PRIVATE_LR * gradient_w)


def spread(rows: list[Matrix]) -> list[Matrix]:
    """Return line 10 on the sum over ordered pairs, with momentum."""
    velocity = [np.zeros_like(row) for row in rows]
    for _ in range(SPREAD_STEPS):
        for c, row in enumerate(rows):
            velocity[c] = SPREAD_MOMENTUM * velocity[c]
            for other, neighbour in enumerate(rows):
                if other != c:
                    velocity[c] += 4.0 * max(0.0, float(row @ neighbour) - SPREAD_MARGIN) * neighbour
        rows = [unit(row - SPREAD_LR * v) for row, v in zip(rows, velocity, strict=True)]
    return rows


def replay(a: Matrix, rounds: int) -> tuple[Matrix, dict[str, Matrix]]:
    """Return A and every w after Algorithm 1."""
    features = {name: quarters(crops) for name, crops in CLIENTS.items()}
    w = {name: unit(unit(x @ a.T).mean(axis=0)) for name, x in features.items()}
    weights = {name: min(len(x), MAX_WEIGHT) for name, x in features.items()}
    for _ in range(rounds):
        local = {name: local_step(a, w[name], x) for name, x in features.items()}
        a = sum((weights[name] * local[name][0] for name in sorted(local)), np.zeros_like(a)) / sum(weights.values())
        w = dict(zip(sorted(local), spread([local[name][1] for name in sorted(local)]), strict=True))
    return a, w


def test_two_rounds_of_algorithm_1() -> None:
    tiny = tiny_linear()
    task = TaskSpec(
        name="golden",
        method="fedface",
        rounds=2,
        cohort=CohortSpec(size=3, min_reports=3),
        local=LocalSpec(lr=LR, private_lr=PRIVATE_LR, flip=False),
        server=ServerSpec(lr=1.0, momentum=0.0),
        privacy=PrivacySpec(reveals=("class_embeddings",), min_cohort=3, max_weight=MAX_WEIGHT),
        options={
            "margin": MARGIN,
            "spread_out": {
                "margin": SPREAD_MARGIN,
                "lr": SPREAD_LR,
                "steps": SPREAD_STEPS,
                "momentum": SPREAD_MOMENTUM,
                "reduction": "sum",
            },
        },
    )
    start = tiny.theta.astype(np.float64).reshape(3, 12)
    expected_a, expected_w = replay(start, rounds=2)
    run = run_task(task, tiny.part("*"), 3, tiny.theta, Cohort(CLIENTS), tiny.runtime())
    assert np.abs(expected_a - start).max() > 1e-3
    np.testing.assert_allclose(run.state.theta.reshape(3, 12), expected_a, atol=2e-6)
    assert sorted(run.state.revealed) == ["ada", "bo", "cy"]
    assert max(float(expected_w[a] @ expected_w[b]) for a, b in (("ada", "bo"), ("bo", "cy"))) > SPREAD_MARGIN
    for name, w in expected_w.items():
        np.testing.assert_allclose(run.state.revealed[name]["class_embedding"], w, atol=2e-6)
