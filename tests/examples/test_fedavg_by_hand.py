"""The loop that is written out by hand and the engines give the same model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from torch import nn

from mien.backbones import Backbone
from mien.specs import CohortSpec, FaceInputSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.base import SequentialEngine
from simulation.engines.engine import Cohort, run_task
from simulation.engines.stacked import StackedEngine
from tests.examples.by_path import EXAMPLES, example
from tests.tiny import tiny_of

BY_HAND = example("fedavg_by_hand")
TASK = TaskSpec(
    "by_hand",
    method="fedavg",
    rounds=BY_HAND.ROUNDS,
    cohort=CohortSpec(size=4, min_reports=2),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
    local=LocalSpec(lr=BY_HAND.LR, epochs=BY_HAND.EPOCHS, flip=False),
    options={"margin": BY_HAND.MARGIN},
)


@pytest.mark.parametrize("engine", [SequentialEngine, StackedEngine])
def test_the_engines_give_what_the_loop_gives(engine: type[SequentialEngine | StackedEngine]) -> None:
    pool, *rest = BY_HAND.recogniser()
    backbone = Backbone("by_hand", FaceInputSpec(dim=8), {"pool": pool, "embedding": nn.Sequential(*rest)})
    tiny, faces = tiny_of(backbone), BY_HAND.phones()
    found = run_task(TASK, tiny.part("*"), 8, tiny.theta, Cohort(faces), engine(tiny.runtime())).state.theta
    expected = np.concatenate(
        [p.detach().numpy().reshape(-1) for p in BY_HAND.fedavg(BY_HAND.recogniser(), faces).parameters()]
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(expected - tiny.theta).max() > 1e-2


def test_it_runs_and_its_loop_stays_short() -> None:
    path = EXAMPLES / "fedavg_by_hand.py"
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert "phone3" in done.stdout
    code = path.read_text(encoding="utf-8").split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 60
