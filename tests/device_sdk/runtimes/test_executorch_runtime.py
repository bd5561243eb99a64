"""ExecuTorch against torch: the same embeddings, the same updates, bounds that are named, and quiet."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk.runtimes import load_runtime
from device_sdk.runtimes.forms import ObjectiveForm, standard_forms
from device_sdk.runtimes.manifest import GraphFolder
from mien.errors import ConfigError, CorruptDataError, LateError, NotFoundError
from mien.methods.base import StepRule, TrainingJob
from tests.device_sdk.runtimes.test_onnx_runtime import CROPS, HINGE, LOCAL, TINY, assert_same
from tests.graphs import ALL_FORMS, FOLDER, FULL_FORMS, LIMITS, objective_of, tiny_executorch_runtime
from tests.tiny import made_up_crops

pytestmark = pytest.mark.numerics

ROOT = Path(__file__).resolve().parents[3]


def test_embeddings_are_torchs() -> None:
    runtime, torch_runtime = tiny_executorch_runtime(TINY), TINY.runtime()
    many = made_up_crops(15, seed=4)  # more than a program takes at once
    np.testing.assert_allclose(runtime.embed(TINY.theta, many), torch_runtime.embed(TINY.theta, many), atol=1e-6)
    assert runtime.embed(TINY.theta, CROPS[:0]).shape == (0, 8)


@pytest.mark.parametrize("form", ALL_FORMS, ids=lambda form: form.name)
def test_tails_get_torchs_update(form: ObjectiveForm) -> None:
    objective = objective_of(form, len(CROPS), 8)
    found = tiny_executorch_runtime(TINY).train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 1))
    expected = TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 1))
    assert_same(found, expected, 1e-5)
    moved = [np.abs(found.private[name] - objective.private[name]).max() > 1e-3 for name in found.private]
    assert any(moved) == bool(form.private)


@pytest.mark.parametrize("form", FULL_FORMS, ids=lambda form: form.name)
def test_whole_networks_get_torchs_update(form: ObjectiveForm) -> None:
    objective = objective_of(form, len(CROPS), 8)
    part = TINY.part("*")
    found = tiny_executorch_runtime(TINY).train(TrainingJob(TINY.theta, part, CROPS, objective, LOCAL, 1))
    assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, part, CROPS, objective, LOCAL, 1)), 1e-4)


def test_step_rules_are_torchs() -> None:
    rule = StepRule(0.7, np.linspace(-0.01, 0.01, TINY.part().size).astype(np.float32), 0.3)
    objective = replace(HINGE, step_rule=rule, velocity={"class_embedding": np.full(8, 0.1, np.float32)})
    found = tiny_executorch_runtime(TINY).train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 2))
    assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 2)), 1e-5)


def test_losses_of_many_images_are_their_mean_by_weight() -> None:
    many = made_up_crops(15, seed=4)
    (form,) = standard_forms("cosface")
    objective, local = objective_of(form, len(many), 8), replace(LOCAL, batch_size=5, epochs=1)
    found = tiny_executorch_runtime(TINY).train(TrainingJob(TINY.theta, TINY.part(), many, objective, local, 3))
    assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), many, objective, local, 3)), 1e-5)


@pytest.mark.parametrize("weights", ["unequal", "some zero"])
def test_losses_of_many_images_are_right_also_where_one_term_is_not_weighted(weights: str) -> None:
    """The divergence counts each image once, and more images than a program takes are worked out in pieces."""
    many = made_up_crops(15, seed=4)
    objective = objective_of(standard_forms("cosface_distilled")[0], len(many), 8)
    given = np.linspace(0.2, 3.0, len(many), dtype=np.float32)
    given[: 10 if weights == "some zero" else 0] = 0.0  # the first piece has no weight at all
    objective = replace(objective, per_crop={**objective.per_crop, "sample_weight": given})
    local = replace(LOCAL, batch_size=1, lr=1e-4, private_lr=1e-4, epochs=1)
    if weights == "some zero":
        local = replace(local, batch_size=5, steps=1)
    found = tiny_executorch_runtime(TINY).train(TrainingJob(TINY.theta, TINY.part(), many, objective, local, 3))
    expected = TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), many, objective, local, 3))
    assert found.loss_before == pytest.approx(expected.loss_before, rel=1e-5)
    assert found.loss_after == pytest.approx(expected.loss_after, rel=1e-4)


@pytest.mark.parametrize("private_weight_decay", [None, 0.4])
def test_batches_beyond_a_programs_bound_are_trained_in_pieces(private_weight_decay: float | None) -> None:
    many = made_up_crops(LIMITS["B"] + 1, seed=4)
    objective = objective_of(standard_forms("cosface")[0], len(many), 8)
    local = replace(LOCAL, batch_size=0, private_weight_decay=private_weight_decay)
    found = tiny_executorch_runtime(TINY).train(TrainingJob(TINY.theta, TINY.part(), many, objective, local, 0))
    assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), many, objective, local, 0)), 1e-5)


def test_classes_beyond_a_programs_bound_are_named() -> None:
    runtime = tiny_executorch_runtime(TINY)
    (form,) = standard_forms("cosface")
    objective = objective_of(form, len(CROPS), 8)
    classes = np.zeros((20, 8), np.float32) + 1
    target = np.eye(20, dtype=np.float32)[np.arange(len(CROPS))]
    wide = replace(
        objective,
        private={"class_embeddings": classes},
        per_crop={**objective.per_crop, "target": target},
    )
    with pytest.raises(ConfigError, match="`max_classes`"):
        runtime.train(TrainingJob(TINY.theta, TINY.part(), CROPS, wide, LOCAL, 0))


def test_training_stops_when_asked() -> None:
    with pytest.raises(LateError, match="nothing was changed"):
        tiny_executorch_runtime(TINY).train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, LOCAL, 0), lambda: True)


def test_what_is_not_exported_is_named() -> None:
    with pytest.raises(NotFoundError, match=r'`device_sdk\.export` with `engine="executorch"`'):
        tiny_executorch_runtime(TINY).train(TrainingJob(TINY.theta, TINY.part("mix.0.bias"), CROPS, HINGE, LOCAL, 0))


def test_a_changed_program_is_refused(tmp_path: Path) -> None:
    source = FOLDER / TINY.layout.sha256
    folder = tmp_path / TINY.layout.sha256
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    data = bytearray((folder / "trunk_mix.pte").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "trunk_mix.pte").write_bytes(data)
    runtime = load_runtime(TINY.spec, TINY.layout, choice="executorch", graphs=tmp_path)
    with pytest.raises(CorruptDataError, match=r"trunk_mix\.pte is damaged or was changed"):
        runtime.embed(TINY.theta, CROPS)


def test_a_program_that_is_none_is_refused(tmp_path: Path) -> None:
    import dataclasses

    from device_sdk.runtimes.executorch_runtime import ExecutorchRuntime
    from device_sdk.runtimes.manifest import write_graph

    graphs = GraphFolder.open(FOLDER, TINY.spec, TINY.layout, "executorch")
    graph = write_graph(tmp_path, graphs.find("tail", stage="mix"), b"no program" * 100)
    entries = tuple(graph if entry.file == graph.file else entry for entry in graphs.manifest.graphs)
    swapped = GraphFolder(tmp_path, dataclasses.replace(graphs.manifest, graphs=entries), "executorch")
    with pytest.raises(CorruptDataError, match="cannot load"):
        ExecutorchRuntime(TINY.spec, TINY.layout, swapped).embed(TINY.theta, CROPS)


def test_it_loads_no_exporter_and_says_nothing() -> None:
    code = (
        "import sys; from tests.graphs import tiny_executorch_runtime; from tests.tiny import tiny_cnn, made_up_crops\n"
        "tiny = tiny_cnn(); tiny_executorch_runtime(tiny).embed(tiny.theta, made_up_crops(2, seed=1))\n"
        "print(*(m for m in ('executorch.exir', 'torchao') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout.strip(), done.stderr.strip()) == ("", "")
