"""FedAvg with the positive loss only: one step by hand, and the collapse that FedFace warns of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mien.methods.base import Crops
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engine import Cohort, run_task
from tests.tiny import made_up_crops, tiny_linear

TASK = TaskSpec(
    name="fedavg",
    method="fedavg",
    rounds=1,
    cohort=CohortSpec(size=2, min_reports=2),
    local=LocalSpec(lr=0.1, private_lr=0.05, flip=False),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)


def pooled(crops: Crops) -> NDArray[np.float64]:
    """Return the mean of each colour in each quarter, colours outermost: (N, 12)."""
    scaled: NDArray[np.float64] = (crops.astype(np.float64) - 127.5) / 128
    quarters: NDArray[np.float64] = scaled.reshape(len(crops), 2, 56, 2, 56, 3).mean(axis=(2, 4)).transpose(0, 3, 1, 2)
    return quarters.reshape(len(crops), 12)


def test_one_round_on_one_image_each_by_hand() -> None:
    """With one image, w starts at its own embedding: cos 1 is above the margin, and nothing moves."""
    tiny = tiny_linear()
    clients = {name: made_up_crops(1, seed=seed) for seed, name in enumerate("ab")}
    run = run_task(TASK, tiny.part("*"), 3, tiny.theta, Cohort(clients), tiny.runtime())
    np.testing.assert_array_equal(run.state.theta, tiny.theta)
    assert run.records[0].loss_before == 0.0


def test_a_device_keeps_its_class_embedding_and_moves_it() -> None:
    tiny = tiny_linear()
    clients = {name: made_up_crops(3, seed=seed, spread=80) for seed, name in enumerate("ab")}
    run = run_task(TASK, tiny.part("*"), 3, tiny.theta, Cohort(clients), tiny.runtime())
    a = tiny.theta.astype(np.float64).reshape(3, 12)
    for name, crops in clients.items():
        z = pooled(crops) @ a.T
        f = z / np.linalg.norm(z, axis=1, keepdims=True)
        w = f.mean(axis=0) / np.linalg.norm(f.mean(axis=0))
        slope = -2 * np.maximum(0, 0.9 - f @ w) / 3
        moved = w - 0.05 * (slope[:, None] * (f - (f @ w)[:, None] * w)).sum(axis=0)
        np.testing.assert_allclose(
            run.cohort.private[name]["class_embedding"], moved / np.linalg.norm(moved), atol=1e-6
        )
    assert run.state.revealed == {}


def test_without_anything_to_hold_them_apart_identities_draw_together() -> None:
    tiny = tiny_linear()
    clients = {name: made_up_crops(4, seed=seed, spread=80) for seed, name in enumerate("abcd")}
    task = TaskSpec(
        name="collapse",
        method="fedavg",
        rounds=60,
        cohort=CohortSpec(size=4, min_reports=4),
        local=LocalSpec(lr=0.1, flip=False),
        server=ServerSpec(lr=1.0),
        privacy=PrivacySpec(min_cohort=4),
        options={"margin": 1.0},
    )
    runtime = tiny.runtime()

    def mean_cosine(theta: NDArray[np.float32]) -> float:
        means = np.stack([runtime.embed(theta, crops).mean(axis=0) for crops in clients.values()])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return float((means @ means.T)[np.triu_indices(4, 1)].mean())

    run = run_task(task, tiny.part("*"), 3, tiny.theta, Cohort(clients), runtime)
    assert run.records[-1].loss_after < run.records[0].loss_before
    assert mean_cosine(run.state.theta) > mean_cosine(tiny.theta)
