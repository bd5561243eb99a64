"""A training that is handed on as a job is the training itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from mien.errors import LateError
from mien.layout import Vector
from mien.methods.base import Crops, Embeddings, Objective, Runtime, Trained
from mien.methods.jobs import JobRuntime, TrainingJob
from mien.specs import LocalSpec
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
CROPS = made_up_crops(4, seed=1)
OBJECTIVE = Objective(
    "positive_hinge", private={"class_embedding": np.eye(8, dtype=np.float32)[0]}, constants={"margin": 0.9}
)
LOCAL = LocalSpec(lr=0.1, private_lr=0.2, epochs=2, batch_size=2)


@dataclass(frozen=True)
class HandsOn(JobRuntime):
    """A runtime around another one that changes nothing."""

    runtime: Runtime

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        return self.runtime.embed(theta, crops)

    def do(self, job: TrainingJob, should_stop: Callable[[], bool]) -> Trained:
        return job.done_by(self.runtime, should_stop)


def test_a_job_is_trained_as_its_arguments_are() -> None:
    direct = TINY.runtime().train(TINY.theta, TINY.part(), CROPS, OBJECTIVE, LOCAL, 5)
    handed = HandsOn(TINY.runtime()).train(TINY.theta, TINY.part(), CROPS, OBJECTIVE, LOCAL, 5)
    np.testing.assert_allclose(handed.values, direct.values, atol=1e-6)
    np.testing.assert_allclose(handed.private["class_embedding"], direct.private["class_embedding"], atol=1e-6)
    assert handed.num_steps == direct.num_steps == 4
    assert np.abs(direct.values - TINY.part().gather(TINY.theta)).max() > 1e-4


def test_a_job_is_left_when_it_is_told_to_stop() -> None:
    with pytest.raises(LateError):
        HandsOn(TINY.runtime()).train(TINY.theta, TINY.part(), CROPS, OBJECTIVE, LOCAL, 5, lambda: True)


def test_a_job_shows_no_faces_and_no_weights() -> None:
    shown = repr(TrainingJob(TINY.theta, TINY.part(), CROPS, OBJECTIVE, LOCAL, 5))
    assert "array" not in shown
    assert "seed=5" in shown
