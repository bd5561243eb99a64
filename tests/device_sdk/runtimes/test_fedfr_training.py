"""What FedFR asks of a runtime: raw features, mirrored images known to the loss, a rate that drops within a round."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from device_sdk.runtimes.objectives import LossInput
from mien.layout import Vector
from mien.methods.base import Objective, TrainingJob
from mien.specs import LocalSpec
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
PART = TINY.part()
CROPS = made_up_crops(5, seed=1)
W = np.eye(8, dtype=np.float32)[0]
HINGE = Objective("positive_hinge", private={"class_embedding": W}, constants={"margin": 0.9})


def trained(theta: Vector, local: LocalSpec) -> Vector:
    return TINY.runtime().train(TrainingJob(theta, PART, CROPS, HINGE, local, 3)).theta


def test_features_are_embeddings_before_their_length_is_taken() -> None:
    features, embeddings = (f(TINY.theta, CROPS) for f in (TINY.runtime().features, TINY.runtime().embed))
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    assert np.abs(lengths - 1).max() > 1e-3
    np.testing.assert_allclose(features / lengths, embeddings, atol=1e-6)


def test_the_rate_drops_to_a_tenth_at_its_epoch() -> None:
    """Two epochs of one batch, the rate dropping at the second: one step at the rate, one at a tenth of it."""
    whole = LocalSpec(lr=0.1, private_lr=0.0, epochs=2, flip=False)
    first = trained(TINY.theta, LocalSpec(lr=0.1, private_lr=0.0, flip=False))
    expected = trained(first, LocalSpec(lr=0.01, private_lr=0.0, flip=False))
    dropped = trained(TINY.theta, LocalSpec(lr=0.1, private_lr=0.0, epochs=2, flip=False, lr_drop_epoch=1))
    np.testing.assert_allclose(dropped, expected, atol=2e-6)  # images in another order: other last bits
    assert np.abs(dropped - trained(TINY.theta, whole)).max() > 1e-4
    never = trained(TINY.theta, LocalSpec(lr=0.1, private_lr=0.0, epochs=2, flip=False, lr_drop_epoch=2))
    np.testing.assert_array_equal(never, trained(TINY.theta, whole))


def test_a_mirrored_image_is_compared_with_its_own_features() -> None:
    both = torch.arange(12.0).reshape(3, 2, 2)
    at = LossInput(torch.zeros(3, 2), {}, {"features": both}, {}, mirrored=torch.tensor([0.0, 1.0, 0.0]))
    assert at.as_seen("features").tolist() == [[0.0, 1.0], [6.0, 7.0], [8.0, 9.0]]
    plain = LossInput(torch.zeros(3, 2), {}, {"features": both}, {})
    assert plain.as_seen("features").tolist() == [[0.0, 1.0], [4.0, 5.0], [8.0, 9.0]]
