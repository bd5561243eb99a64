"""Fixed random class embeddings: drawn once on the unit sphere, kept, never moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mien.methods.base import DeviceInput
from mien.methods.fixed_embedding import FIXED_EMBEDDING, random_directions
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.tiny import made_up_crops, tiny_linear

pytestmark = pytest.mark.numerics

TINY = tiny_linear()
TASK = TaskSpec(
    name="fixed",
    method="fixed_embedding",
    cohort=CohortSpec(size=3, min_reports=3),
    local=LocalSpec(lr=0.1, private_lr=0.5, flip=False),
    privacy=PrivacySpec(min_cohort=3),
)
CROPS = np.concatenate([made_up_crops(2, seed=seed) for seed in (1, 2)])


def input_of(labels: np.ndarray | None, seed: int = 3) -> DeviceInput:
    part = TINY.part("*")
    return DeviceInput(task=TASK, part=part, dim=3, theta=TINY.theta, crops=CROPS, labels=labels, seed=seed)


def test_directions_are_uniform_on_the_sphere() -> None:
    drawn = random_directions(4000, 3, seed=0)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(drawn.T @ drawn / 4000, np.eye(3) / 3, atol=0.03)


def test_a_class_embedding_stays_where_it_was_drawn() -> None:
    """Also under a private learning rate that the task gives, and from round to round under other seeds."""
    first = FIXED_EMBEDDING.device_round(input_of(None), TINY.runtime())
    (drawn,) = random_directions(1, 3, seed=3)
    np.testing.assert_array_equal(first.private["class_embedding"], drawn)
    second = FIXED_EMBEDDING.device_round(replace(input_of(None, seed=4), private=first.private), TINY.runtime())
    np.testing.assert_array_equal(second.private["class_embedding"], drawn)


def test_images_are_drawn_to_their_own_identitys_point() -> None:
    """One step on two identities: the loss is the mean over images of max(0, m - w_y.f)^2, and it falls."""
    labels = np.array([0, 0, 1, 1])
    output = FIXED_EMBEDDING.device_round(input_of(labels), TINY.runtime())
    w = random_directions(2, 3, seed=3).astype(np.float64)
    f = TINY.runtime().embed(TINY.theta, CROPS).astype(np.float64)
    expected = np.mean([max(0.0, 0.9 - float(w[y] @ x)) ** 2 for x, y in zip(f, labels, strict=True)])
    np.testing.assert_allclose(output.metrics["loss_before"], expected, rtol=1e-5)
    assert output.metrics["loss_after"] < output.metrics["loss_before"]
