"""A phone of little memory: SFace recognises, trains and adds up statistics on the heap that Android gives small apps.

The limits are on Java's heap and on what Java asks for beside it; on Android both are one. What a graph takes while it
runs is neither, nor is the model, which stays in its file.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from device_sdk.export.build import export_graphs
from device_sdk.models.models import Model
from device_sdk.runtimes.forms import standard_forms
from device_sdk.runtimes.manifest import GraphFolder
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from mien.methods import METHODS
from mien.methods.base import DeviceInput
from mien.protocol.canonical import model_to_json, task_to_json
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec, Threshold
from simulation.faces.models import sface, sface_with_adapter
from tests.android.jvm import command
from tests.android.test_training import SEED, compared, task_of
from tests.tiny import made_up_crops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SMALL: Final = ("-Xmx112m", "-XX:MaxDirectMemorySize=16m")
"""128 MB in all."""
FEW_STEPS: Final = LocalSpec(lr=0.001, momentum=0.9, weight_decay=0.001, batch_size=3, steps=4)


@dataclass(frozen=True)
class Exported:
    """A model and the folder of its graphs."""

    model: Model
    graphs: Path

    def runtime(self) -> OnnxRuntime:
        spec, layout = self.model.spec, self.model.layout
        return OnnxRuntime(spec, layout, GraphFolder.at(self.graphs, spec, layout))


@pytest.fixture(scope="module", params=["default_part", "adapter"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    given = sface() if request.param == "default_part" else sface_with_adapter()
    threshold = Threshold(0.4, 0.001, "made up", 10, 1000, given.model_id, "2026-01-01")
    model = Model(given.model_id, replace(given.spec, thresholds=(threshold,)), given.layout, given.theta, None)
    graphs = tmp_path_factory.mktemp("graphs")
    export_graphs(model.spec, model.layout, graphs, forms=standard_forms("positive_hinge"))
    return Exported(model, graphs)


def given(folder: Path, model: Model, crops: bytes, labels: bytes) -> None:
    (folder / "model_id").write_text(model.model_id)
    (folder / "model.json").write_bytes(model_to_json(model.spec, model.layout))
    (folder / "theta.f32").write_bytes(np.ascontiguousarray(model.theta, "<f4").tobytes())
    (folder / "crops").write_bytes(crops)
    (folder / "labels").write_bytes(labels)


def output_of(main: str, *arguments: object) -> str:
    done = subprocess.run(
        command(main, *arguments, memory=SMALL), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_enrolling_and_recognising(exported: Exported, tmp_path: Path) -> None:
    crops = np.concatenate([made_up_crops(4, seed=9), made_up_crops(1, seed=77)])
    given(tmp_path, exported.model, crops.tobytes(), bytes([0, 0, 0, 0, 1]))
    said = output_of("mien.e2e.Recognise", tmp_path, exported.graphs).split()
    ours = exported.runtime().embed(exported.model.theta, crops)
    theirs = np.frombuffer((tmp_path / "embeddings").read_bytes(), "<f4").reshape(ours.shape)
    assert np.abs(theirs - ours).max() <= 1e-5
    template = ours[:4].mean(axis=0)
    cosines = ours @ template / np.linalg.norm(template)
    assert said == ["yes" if cosine >= 0.4 else "no" for cosine in cosines]


def test_training(exported: Exported, tmp_path: Path) -> None:
    task = replace(task_of("fedavg", margin=1.0), local=FEW_STEPS)
    crops = made_up_crops(6, seed=9)
    found = compared(tmp_path, exported.model, exported.graphs, task, crops, memory=SMALL)
    assert np.abs(found.update).max() > 1e-5, "training moved something"
    assert found.error <= 1e-5
    assert found.loss_error <= 1e-4


@pytest.mark.parametrize("exported", ["adapter"], indirect=True)
def test_summing_statistics(exported: Exported, tmp_path: Path) -> None:
    model = exported.model
    task = TaskSpec(
        "sum",
        method="statistics",
        rounds=1,
        cohort=CohortSpec(size=4, min_reports=4),
        privacy=PrivacySpec(min_cohort=4, max_weight=1, reveals=("class_moment",)),
        options={"form": "centre", "min_people": 4, "max_people": 1, "longest": 100.0},
    )
    crops = made_up_crops(5, seed=9)
    given(tmp_path, model, crops.tobytes(), bytes(5))
    (tmp_path / "task.json").write_bytes(task_to_json(task))
    output_of("mien.e2e.Train", tmp_path, exported.graphs, SEED)
    inp = DeviceInput(
        task, model.layout.part(model.spec.trainable), model.spec.input.dim, model.theta, crops,
        labels=np.zeros(5, int), seed=SEED, device="device",
    )  # fmt: skip
    ours = METHODS["statistics"].device_round(inp, exported.runtime()).contribution.vector
    theirs = np.frombuffer((tmp_path / "sent-0").read_bytes(), "<f4")
    assert np.abs(ours).max() > 1e-3, "something was added up"
    assert np.abs(theirs - ours).max() <= 1e-5
