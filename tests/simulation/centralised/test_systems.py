"""The pooled systems: what each looks at, what it trains on, and that two of them are equal where they should be."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.base import Crops, Embeddings, Objective, Trained, TrainingJob, never_stop
from mien.specs import LocalSpec
from simulation.centralised.systems import Faces, Head, Trainer, dan, dann, merge
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
SOURCE = Faces(
    np.concatenate([made_up_crops(3, seed=seed, spread=30) for seed in range(4)]), np.repeat(np.arange(4), 3)
)
TARGET = Faces(
    np.concatenate([made_up_crops(3, seed=seed, spread=5) // 2 for seed in range(10, 13)]), np.repeat(np.arange(3), 3)
)
HEAD = Head("arcface", scale=8.0, margin=0.1)
LOCAL = LocalSpec(lr=0.05, steps=6, batch_size=6, flip=False)


class Watching:
    """A runtime that notes what it is asked to train on."""

    def __init__(self) -> None:
        self.runtime = TINY.runtime()
        self.seen: list[tuple[Crops, Objective]] = []

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        return self.runtime.embed(theta, crops)

    def train(self, job: TrainingJob, should_stop: object = never_stop) -> Trained:
        self.seen.append((job.crops, job.objective))
        return self.runtime.train(job)


def trainer(**changes: object) -> Trainer:
    whole = Trainer(Watching(), TINY.part(), HEAD, LOCAL, 5)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def separation(theta: Vector, faces: Faces) -> float:
    """Return the mean cosine within identities minus that between them."""
    f = TINY.runtime().embed(theta, faces.crops).astype(np.float64)
    same = faces.labels[:, None] == faces.labels[None, :]
    cosines = f @ f.T
    return float(cosines[same & ~np.eye(len(f), dtype=bool)].mean() - cosines[~same].mean())


def test_supervised_training_separates_identities_and_leaves_the_rest() -> None:
    theta = trainer().supervised(TINY.theta, SOURCE)
    assert separation(theta, SOURCE) > separation(TINY.theta, SOURCE)
    other = trainer().supervised(TINY.theta, TARGET)
    assert np.abs(other - theta).max() > 0
    frozen = TINY.part("stem.*")
    np.testing.assert_array_equal(frozen.gather(theta), frozen.gather(TINY.theta))


def test_merging_keeps_the_identities_apart() -> None:
    at = trainer()
    merge(at, TINY.theta, SOURCE, TARGET)
    ((crops, objective),) = at.runtime.seen  # type: ignore[attr-defined]
    assert len(crops) == 21
    assert objective.per_crop["target"].shape == (21, 7)
    assert objective.per_crop["target"].argmax(axis=1).tolist() == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
        2,
        3,
        3,
        3,
        4,
        4,
        4,
        5,
        5,
        5,
        6,
        6,
        6,
    ]


@pytest.mark.parametrize("system", [dan, dann])
def test_adaptation_trains_on_both_domains_and_labels_of_one(system: object) -> None:
    at = trainer()
    theta = system(at, TINY.theta, SOURCE, TARGET.crops)  # type: ignore[operator]
    ((crops, objective),) = at.runtime.seen  # type: ignore[attr-defined]
    assert len(crops) == 21
    assert objective.per_crop["is_source"].tolist() == [1.0] * 12 + [0.0] * 9
    assert objective.per_crop["target"][12:].sum() == 0
    assert np.isfinite(theta).all()


def test_without_its_extra_loss_dan_is_source_training_on_whole_batches() -> None:
    """All images in every batch and a trade-off of 0: the target's images change nothing."""
    local = LocalSpec(lr=0.05, steps=4, flip=False)
    alone = trainer(local=local).supervised(TINY.theta, SOURCE)
    mixed = dan(trainer(local=local), TINY.theta, SOURCE, TARGET.crops, trade_off=0.0)
    np.testing.assert_allclose(mixed, alone, atol=1e-5)


def test_dan_draws_the_domains_together() -> None:
    def gap(theta: Vector) -> float:
        f = TINY.runtime()
        return float(
            np.linalg.norm(f.embed(theta, SOURCE.crops).mean(axis=0) - f.embed(theta, TARGET.crops).mean(axis=0))
        )

    local = LocalSpec(lr=0.05, steps=20, flip=False)
    alone = dan(trainer(local=local), TINY.theta, SOURCE, TARGET.crops, trade_off=0.0)
    drawn = dan(trainer(local=local), TINY.theta, SOURCE, TARGET.crops, trade_off=5.0)
    assert gap(drawn) < gap(alone)


def test_dann_learns_a_discriminator_and_seeds_differ() -> None:
    local = LocalSpec(lr=0.05, steps=3, flip=False)
    one, same = (dann(trainer(local=local), TINY.theta, SOURCE, TARGET.crops) for _ in range(2))
    np.testing.assert_array_equal(one, same)
    other = dann(trainer(local=local, seed=6), TINY.theta, SOURCE, TARGET.crops)
    assert np.abs(other - one).max() > 0
    still = dann(trainer(local=local), TINY.theta, SOURCE, TARGET.crops, reversal=0.0)
    plain = trainer(local=local).supervised(TINY.theta, SOURCE)
    np.testing.assert_allclose(still, plain, atol=1e-5)  # nothing comes back through the reversal


def test_faces_need_a_label_each() -> None:
    with pytest.raises(ConfigError, match="give each crop one"):
        Faces(SOURCE.crops, SOURCE.labels[:3])
    with pytest.raises(ConfigError, match="give each crop one"):
        Faces(SOURCE.crops, SOURCE.labels - 1)
