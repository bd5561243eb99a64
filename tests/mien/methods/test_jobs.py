"""What a device half wants trained: one record, which a method makes of its input and which shows nothing in a log."""

from __future__ import annotations

import numpy as np

from mien.methods.base import DeviceInput, Objective, TrainingJob
from mien.specs import LocalSpec, TaskSpec
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
CROPS = made_up_crops(4, seed=1)
OBJECTIVE = Objective(
    "positive_hinge", private={"class_embedding": np.eye(8, dtype=np.float32)[0]}, constants={"margin": 0.9}
)
LOCAL = LocalSpec(lr=0.1, private_lr=0.2, epochs=2, batch_size=2)
INPUT = DeviceInput(TaskSpec("t", "fedavg", local=LOCAL), TINY.part(), 8, TINY.theta, CROPS, seed=5)


def test_a_device_trains_on_its_own_crops_as_its_task_says_unless_told_otherwise() -> None:
    job = INPUT.job(OBJECTIVE)
    assert (job.theta is TINY.theta, job.crops is CROPS, job.local, job.seed) == (True, True, LOCAL, 5)
    other, one_step = CROPS[:0], LocalSpec(steps=1)
    job = INPUT.job(OBJECTIVE, crops=other, local=one_step)
    assert (job.theta is TINY.theta, job.crops is other, job.local is one_step) == (True, True, True)


def test_a_job_shows_no_faces_and_no_weights() -> None:
    shown = repr(TrainingJob(TINY.theta, TINY.part(), CROPS, OBJECTIVE, LOCAL, 5))
    assert "array" not in shown
    assert "seed=5" in shown
