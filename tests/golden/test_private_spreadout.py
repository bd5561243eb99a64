"""FedFace's private forms over whole rounds by plain float64 loops: steps from public people and against moments.

The recogniser is linear on the 12 means over a crop's quarters; this file shares no arithmetic with `mien`.
"""

from __future__ import annotations

import numpy as np
import pytest

from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, run_task
from tests.golden.test_fedface import CLIENTS, LR, MARGIN, PRIVATE_LR, Matrix, local_step, quarters, unit
from tests.tiny import made_up_crops, tiny_linear

pytestmark = pytest.mark.numerics

MOMENT_LR, MOMENT_STEPS, EVERY, ROUNDS = 0.7, 2, 2, 4
PUSH_MARGIN, PUSH_LR = 0.1, 0.4
PUBLIC = PublicFaces(np.concatenate([made_up_crops(2, seed=90 + k) for k in range(3)]), np.repeat(np.arange(3), 2))


def against(w: Matrix, others: list[Matrix]) -> Matrix:
    """Return w after its steps against the mean second moment of the others' embeddings."""
    mean = sum((np.outer(v, v) for v in others), np.zeros((3, 3))) / len(others)
    rate = min(MOMENT_LR, 0.9 / float(np.linalg.eigvalsh(mean)[-1]))
    for _ in range(MOMENT_STEPS):
        w = unit(w - rate * mean @ w)
    return w


def away(w: Matrix, public: list[Matrix]) -> Matrix:
    """Return w after one step down the mean over public people of max(0, w.p - margin)^2."""
    gradient = sum((2.0 * max(0.0, float(w @ p) - PUSH_MARGIN) * p for p in public), np.zeros(3)) / len(public)
    return unit(w - PUSH_LR * gradient)


def replay(a: Matrix, *, moment: bool, push: bool) -> tuple[Matrix, dict[str, Matrix]]:
    """Return A and every w after the rounds; moments are summed in rounds 1, 1 + EVERY, ... of w as it was trained."""
    features = {name: quarters(crops) for name, crops in CLIENTS.items()}
    w = {name: unit(unit(x @ a.T).mean(axis=0)) for name, x in features.items()}
    opened: dict[str, Matrix] = {}
    for number in range(ROUNDS):
        public = [unit(unit(quarters(PUBLIC.crops[PUBLIC.labels == k]) @ a.T).mean(axis=0)) for k in range(3)]
        local = {name: local_step(a, w[name], x) for name, x in features.items()}
        trained = {name: step[1] for name, step in local.items()}
        w = {name: away(v, public) if push else v for name, v in trained.items()}
        if moment and opened:
            w = {name: against(v, [other for peer, other in opened.items() if peer != name]) for name, v in w.items()}
        if moment and number % EVERY == 0:
            opened = trained
        weights = {name: len(x) for name, x in features.items()}
        a = sum((weights[n] * local[n][0] for n in sorted(local)), np.zeros_like(a)) / sum(weights.values())
    return a, w


@pytest.mark.parametrize(("moment", "push"), [(False, False), (True, False), (False, True), (True, True)])
def test_four_rounds_of_the_private_forms(moment: bool, push: bool) -> None:
    tiny = tiny_linear()
    options: dict[str, object] = {"margin": MARGIN, "private_form": "hinge"}
    if moment:
        options["moment"] = {"every": EVERY, "lr": MOMENT_LR, "steps": MOMENT_STEPS}
    if push:
        step = {"margin": PUSH_MARGIN, "lr": PUSH_LR, "steps": 1, "momentum": 0.0, "reduction": "mean"}
        options["public_step"] = step
    task = TaskSpec(
        name="golden",
        method="fedface",
        rounds=ROUNDS,
        cohort=CohortSpec(size=3, min_reports=3),
        local=LocalSpec(lr=LR, private_lr=PRIVATE_LR, flip=False),
        server=ServerSpec(lr=1.0, momentum=0.0),
        privacy=PrivacySpec(reveals=("class_moment",) if moment else (), min_cohort=3),
        options=options,
    )
    start = tiny.theta.astype(np.float64).reshape(3, 12)
    expected_a, expected_w = replay(start, moment=moment, push=push)
    run = run_task(task, tiny.part("*"), 3, tiny.theta, Cohort(CLIENTS, public=PUBLIC), tiny.runtime())
    np.testing.assert_allclose(run.state.theta.reshape(3, 12), expected_a, atol=3e-6)
    for name, w in expected_w.items():
        np.testing.assert_allclose(run.cohort.private[name]["class_embedding"], w, atol=5e-6)
    plain_w = replay(start, moment=False, push=False)[1]
    if moment or push:
        assert max(np.abs(expected_w[name] - plain_w[name]).max() for name in plain_w) > 1e-2
