"""FedAvg: one step of each loss by hand, and the collapse that FedFace warns of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.methods import fedavg
from mien.methods.base import Crops, DeviceInput
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
from tests.golden import _reference_losses as paper
from tests.tiny import made_up_crops, tiny_linear

pytestmark = pytest.mark.numerics

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


COSFACE = replace(TASK, options={"loss": "cosface", "cosface": {"scale": 8.0, "margin": 0.2}})
TWO = np.concatenate([made_up_crops(2, seed=seed) for seed in (1, 2)])
PUBLIC = np.concatenate([made_up_crops(2, seed=seed) for seed in (7, 8, 9)])


def input_of(task: TaskSpec, **changes: Any) -> DeviceInput:
    tiny = tiny_linear()
    inp = DeviceInput(
        task=task,
        part=tiny.part("*"),
        dim=3,
        theta=tiny.theta,
        crops=TWO,
        labels=np.array([0, 0, 1, 1]),
        public_crops=PUBLIC,
        public_labels=np.repeat(np.arange(3), 2),
        seed=3,
    )
    return replace(inp, **changes)


def test_cosface_tells_a_phones_identities_apart() -> None:
    """The loss before is CosFace over the mean features of the phone's identities; one step moves all of them."""
    output = fedavg.device_round(input_of(COSFACE), tiny_linear().runtime())
    z = pooled(TWO) @ tiny_linear().theta.astype(np.float64).reshape(3, 12).T
    f = z / np.linalg.norm(z, axis=1, keepdims=True)
    means = np.stack([f[:2].mean(axis=0), f[2:].mean(axis=0)])
    expected = paper.cosface_loss(z, means, [0, 0, 1, 1], 8.0, 0.2)
    np.testing.assert_allclose(output.metrics["loss_before"], expected, rtol=1e-5)
    assert output.private["class_embedding"].shape == (2, 3)
    assert output.contribution.layout.revealed == ()


def test_cosface_with_public_images_has_public_classes() -> None:
    task = replace(COSFACE, options={"loss": "cosface", "cosface": {"public_images": 4}})
    output = fedavg.device_round(input_of(task), tiny_linear().runtime())
    assert output.private["public_embeddings"].shape == (3, 3)
    alone = fedavg.device_round(input_of(task, labels=None, crops=TWO[:2]), tiny_linear().runtime())
    assert alone.private["class_embedding"].shape == (1, 3)
    assert fedavg.requirements(task).public_faces
    assert not fedavg.requirements(COSFACE).public_faces


def test_a_softmax_over_one_class_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"one identity.*options\.cosface\.public_images"):
        fedavg.device_round(input_of(COSFACE, labels=None), tiny_linear().runtime())


def test_the_positive_loss_takes_several_identities() -> None:
    output = fedavg.device_round(input_of(TASK), tiny_linear().runtime())
    assert output.private["class_embedding"].shape == (2, 3)
    np.testing.assert_allclose(np.linalg.norm(output.private["class_embedding"], axis=1), 1, atol=1e-6)
