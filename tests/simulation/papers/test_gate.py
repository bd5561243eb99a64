"""The gate's study: a closed gate is the released model, an open one serves both populations by one threshold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mien.evaluation import all_pairs, det_curve, equal_error_rate
from mien.methods import find_method
from mien.records import from_mapping
from mien.specs import FaceInputSpec, ModelSpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
from simulation.faces.workbench import TRAINABLE
from simulation.papers.gate import Faces, behind_features, study
from simulation.papers.light import numbers_as_crops

DIM, PICTURES = 16, 5
QUICK = study(quick=True, faces=None)


def made_up_faces() -> Faces:
    """Return 60 people of a population around 0, and 200 of another, whose people differ in half of the directions."""
    rng = np.random.default_rng(0)
    own = rng.normal(0, 1, (60, DIM))
    new = np.concatenate([rng.normal(0, 1, (200, DIM // 2)), np.full((200, DIM // 2), 2.0)], axis=1)
    people = np.concatenate([own, new])
    spread = np.repeat([0.2, 0.2], DIM // 2) * np.ones((260, 1))
    spread[60:, DIM // 2 :] = 1.5
    features = people.repeat(PICTURES, axis=0) + rng.normal(0, 1, (260 * PICTURES, DIM)) * spread.repeat(
        PICTURES, axis=0
    )
    names = [*(f"own {i}" for i in range(60)), *(f"new {i}" for i in range(200))]
    rows = {name: np.arange(i * PICTURES, (i + 1) * PICTURES) for i, name in enumerate(names)}
    spec = ModelSpec("sface_adapter", "0" * 64, FaceInputSpec(dim=DIM), "made up", "none", TRAINABLE)
    bench: Any = SimpleNamespace(model=SimpleNamespace(spec=spec))
    return Faces(bench, features.astype(np.float32), rows, tuple(names[:60]), None)


@pytest.mark.parametrize("row", [row for row in QUICK.rows if "task" in row.settings], ids=lambda row: row.name)
def test_every_row_is_a_task_that_its_method_takes(row: Any) -> None:
    model, _ = behind_features(made_up_faces(), made_up_faces().own if row.settings["gated"] else ())
    task = from_mapping(TaskSpec, row.settings["task"])
    layout = find_method(task.method).contribution_layout(task, model.layout.part(TRAINABLE), model.spec.input.dim)
    assert layout.slices["mean"].stop - layout.slices["mean"].start == DIM


def test_phones_people_gain_and_the_models_own_lose_nothing() -> None:
    faces = made_up_faces()
    model, runtime = behind_features(faces, faces.own[:40])
    released, plain_runtime = behind_features(faces, ())
    crops = numbers_as_crops(len(faces.features))
    phones = [name for name in faces.rows if name.startswith("new")][:120]
    others, test = faces.own[40:], [name for name in faces.rows if name.startswith("new")][120:]
    options = {"form": "wccn", "shrinkage": 0.1, "min_people": 40}
    task = from_mapping(
        TaskSpec,
        {
            **next(row for row in QUICK.rows if row.name == "gate_wccn").settings["task"],
            "cohort": {"size": 60, "min_reports": 60},
            "rounds": 2,
            "options": options,
        },
    )
    cohort = Cohort({name: crops[faces.rows[name]] for name in phones})
    run = run_task(task, model.layout.part(TRAINABLE), model.spec.input.dim, model.theta, cohort, runtime)
    assert not run.state.lacks

    def eer(theta: Any, which: Any, people: Any) -> float:
        rows, labels = faces.of(people, PICTURES)
        return equal_error_rate(det_curve(all_pairs(which.embed(theta, crops[rows]), labels))).value

    for people in (test, others):
        closed, plain = eer(model.theta, runtime, people), eer(released.theta, plain_runtime, people)
        assert closed == pytest.approx(plain, abs=1e-4)
    assert eer(run.state.theta, runtime, test) < 0.5 * eer(model.theta, runtime, test)
    assert eer(run.state.theta, runtime, others) == pytest.approx(eer(model.theta, runtime, others), abs=0.005)
