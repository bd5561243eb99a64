"""ONNX Runtime against torch: the same embeddings, the same updates, the same refusals, and no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from device_sdk.export.build import export_graphs
from device_sdk.runtimes.forms import ObjectiveForm, standard_forms
from device_sdk.runtimes.manifest import GraphFolder, folder_for
from device_sdk.runtimes.onnx_runtime import NO_ARENA, OnnxRuntime, step_arena
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones.gate import build_gated
from mien.backbones.importers import import_model, with_adapter
from mien.errors import ConfigError, LateError, LayoutMismatchError, NonFiniteError, NotFoundError
from mien.methods.base import StepRule, Trained, TrainingJob
from mien.models.known_models import SFACE
from mien.specs import FaceInputSpec, LocalSpec
from tests.graphs import ALL_FORMS, FOLDER, FULL_FORMS, objective_of, tiny_onnx_runtime
from tests.mien.backbones._models import mobilefacenet_file, real_crops, wheel_model
from tests.tiny import made_up_crops, tiny_cnn, tiny_of
from tests.without import hide

pytestmark = pytest.mark.numerics

ROOT = Path(__file__).resolve().parents[3]
TINY = tiny_cnn()
CROPS = made_up_crops(6, seed=1)
# Batches of 5 and 1, mirrored, three epochs with a drop of the rate.
LOCAL = LocalSpec(
    lr=0.05, epochs=3, batch_size=5, momentum=0.5, weight_decay=0.01, private_lr=0.1, private_momentum=0.3,
    lr_drop_epoch=2, private_weight_decay=0.4,
)  # fmt: skip
HINGE = objective_of(standard_forms("positive_hinge")[0], 6, 8)


def relative(found: Trained, expected: Trained) -> float:
    """Return the L2 distance of two updates over the length of the expected one."""
    start = expected.part.gather(expected.received)
    distance = np.linalg.norm(found.values - expected.values) / np.linalg.norm(expected.values - start)
    return float(distance)


def assert_same(found: Trained, expected: Trained, tolerance: float) -> None:
    assert relative(found, expected) < tolerance
    assert found.num_steps == expected.num_steps
    assert found.loss_before == pytest.approx(expected.loss_before, rel=1e-5, abs=1e-6)
    assert found.loss_after == pytest.approx(expected.loss_after, rel=1e-4, abs=1e-5)
    for mine, theirs in ((found.private, expected.private), (found.velocity, expected.velocity)):
        assert mine.keys() == theirs.keys()
        for name, values in theirs.items():
            np.testing.assert_allclose(mine[name], values, rtol=1e-3, atol=1e-4)


def test_embeddings_are_torchs() -> None:
    runtime, torch_runtime = tiny_onnx_runtime(), TINY.runtime()
    np.testing.assert_allclose(runtime.embed(TINY.theta, CROPS), torch_runtime.embed(TINY.theta, CROPS), atol=1e-6)
    features = runtime.features(TINY.theta, CROPS)
    np.testing.assert_allclose(features, torch_runtime.features(TINY.theta, CROPS), rtol=1e-5, atol=1e-6)
    assert runtime.embed(TINY.theta, CROPS[:0]).shape == (0, 8)


def test_a_second_face_brings_an_arena_and_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that looks at one face holds none; where features are not remembered each face runs every graph."""
    made, session = list[bool](), onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda data, options, **more: made.append(options.enable_cpu_mem_arena) or session(data, options, **more),
    )
    runtime = tiny_onnx_runtime(cache_bytes=0)
    first, again, third = (runtime.embed(TINY.theta, CROPS[:1]) for _ in range(3))
    assert made == [False, False, True, True], "trunk and tail for the first face, and both for all others"
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, third)


def test_a_graph_that_trains_is_loaded_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    levels, session = list[onnxruntime.GraphOptimizationLevel](), onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda data, options, **more: levels.append(options.graph_optimization_level) or session(data, options, **more),
    )
    trained = tiny_onnx_runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, LOCAL, 1))
    assert trained.num_steps > 1
    assert levels.count(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL) == 1, "no other graph is left as it was"


@pytest.mark.parametrize("mega", [1, 67, 68, 1000])
def test_a_step_over_however_many_parameters_has_settings_that_the_library_takes(mega: int) -> None:
    """A region's length is a C integer: 68 million trained parameters have more than that of working memory."""
    vector = np.broadcast_to(np.float32(0.0), (mega * 10**6,))
    settings = step_arena({"trained": vector, "velocity": vector, "x": np.zeros((8, 3, 112, 112), np.float32)})
    assert onnxruntime.OrtArenaCfg(settings).initial_chunk_size_bytes >= min(8 * 4 * vector.size, 2**31 - 1)


def test_a_step_has_an_arena_of_its_own_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    registered, register = list[int](), onnxruntime.create_and_register_allocator

    def note(memory: onnxruntime.OrtMemoryInfo, settings: onnxruntime.OrtArenaCfg) -> None:
        registered.append(settings.initial_chunk_size_bytes)
        register(memory, settings)

    monkeypatch.setattr(onnxruntime, "create_and_register_allocator", note)
    job = TrainingJob(TINY.theta, TINY.part("*"), CROPS, objective_of(FULL_FORMS[0], 6, 8), LOCAL, 1)
    first, again = (tiny_onnx_runtime().train(job) for _ in range(2))
    none, size = NO_ARENA["initial_chunk_size_bytes"], TINY.part("*").size
    step, *_ = registered
    feed = {"trained": np.zeros(size, np.float32), "velocity": np.zeros(size, np.float32)}
    crops = np.zeros((LOCAL.batch_size, *CROPS.shape[1:]), np.float32)
    assert step == step_arena({**feed, "x": crops})["initial_chunk_size_bytes"] > 8 * 4 * size
    assert registered == [step, none, step, none]
    np.testing.assert_array_equal(first.values, again.values)
    with pytest.raises(NonFiniteError):
        tiny_onnx_runtime().train(
            replace(
                job,
                objective=HINGE,
                part=TINY.part(),
                local=LocalSpec(100.0, momentum=0.9, epochs=60, weight_decay=5.0),
            )
        )
    assert len(registered) == 6
    assert registered[5] == none, "given back after a step that failed, too"


def test_graphs_of_the_whole_network_alone_are_enough(tmp_path: Path) -> None:
    whole, form = [TINY.part("*")], FULL_FORMS[0]
    export_graphs(
        TINY.spec, TINY.layout, folder_for(tmp_path, TINY.layout), forms=[form], parts=whole, backbone=TINY.backbone
    )
    runtime = OnnxRuntime(TINY.spec, TINY.layout, GraphFolder.open(tmp_path, TINY.spec, TINY.layout))
    np.testing.assert_allclose(runtime.embed(TINY.theta, CROPS), TINY.runtime().embed(TINY.theta, CROPS), atol=1e-6)


@pytest.mark.parametrize("form", ALL_FORMS, ids=lambda form: form.name)
def test_tails_get_torchs_update(form: ObjectiveForm) -> None:
    objective = objective_of(form, len(CROPS), 8)
    found = tiny_onnx_runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 1))
    expected = TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 1))
    assert_same(found, expected, 1e-5)
    moved = [np.abs(found.private[name] - objective.private[name]).max() > 1e-3 for name in found.private]
    assert any(moved) == bool(form.private)


@pytest.mark.parametrize("form", FULL_FORMS, ids=lambda form: form.name)
def test_whole_networks_get_torchs_update(form: ObjectiveForm) -> None:
    objective = objective_of(form, len(CROPS), 8)
    part = TINY.part("*")
    found = tiny_onnx_runtime().train(TrainingJob(TINY.theta, part, CROPS, objective, LOCAL, 1))
    assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, part, CROPS, objective, LOCAL, 1)), 1e-4)


@pytest.mark.parametrize(
    "local",
    [
        LocalSpec(lr=0.1),
        LocalSpec(lr=0.1, steps=5, batch_size=4),
        LocalSpec(lr=0.1, epochs=2, batch_size=1, flip=False, momentum=0.9),
        LocalSpec(lr=0.1, private_lr=0.0, epochs=2),
    ],
    ids=["one batch", "steps", "single images", "fixed private"],
)
def test_schedules_are_torchs(local: LocalSpec) -> None:
    for seed in (0, 7):
        found = tiny_onnx_runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, local, seed))
        assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, local, seed)), 1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_that_write_over_their_vectors_touch_nothing_that_they_were_given(momentum: float) -> None:
    """The model, the objective's tensors and a rule that draws to where training began are the caller's."""
    theta, rule = TINY.theta.copy(), StepRule(proximal=0.5)
    objective = replace(objective_of(standard_forms("cosface")[0], 6, 8), step_rule=rule)
    given = {name: values.copy() for name, values in objective.private.items()}
    local = LocalSpec(lr=0.1, epochs=4, batch_size=2, momentum=momentum)
    part = TINY.part("*")
    found = tiny_onnx_runtime().train(TrainingJob(theta, part, CROPS, objective, local, 1))
    np.testing.assert_array_equal(theta, TINY.theta)
    for name, values in given.items():
        np.testing.assert_array_equal(objective.private[name], values)
    assert_same(found, TINY.runtime().train(TrainingJob(theta, part, CROPS, objective, local, 1)), 1e-4)


@pytest.mark.parametrize("pieces_of", [1, 2, 3, 100])
@pytest.mark.parametrize("name", ["positive_hinge", "cosface"])
def test_pieces_of_a_batch_take_the_whole_batchs_step(name: str, pieces_of: int) -> None:
    """Also with uneven pieces and weights, a step rule, decay, momentum, and private tensors of another rate."""
    rule = StepRule(0.7, np.linspace(-0.01, 0.01, TINY.part().size).astype(np.float32), 0.3)
    objective = replace(objective_of(standard_forms(name)[0], 6, 8), step_rule=rule)
    runtime = tiny_onnx_runtime()
    assert runtime.can_divide(objective, LOCAL)
    with runtime.in_pieces(pieces_of):
        found = runtime.train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 2))
    assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 2)), 5e-5)


def test_a_piece_without_weight_counts_nothing() -> None:
    objective = objective_of(standard_forms("cosface")[0], 6, 8)
    weights = np.array([0, 0, 1, 2, 0, 1], np.float32)
    objective = replace(objective, per_crop={**objective.per_crop, "sample_weight": weights})
    local, runtime = replace(LOCAL, batch_size=0), tiny_onnx_runtime()
    with runtime.in_pieces(1):
        found = runtime.train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, local, 2))
    assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, local, 2)), 5e-5)


@pytest.mark.parametrize(
    ("weights", "divides"),
    [(None, True), ([2.0] * 6, True), ([1, 1, 1, 1, 1, 1e-6], False), ([1, 1, 1, 1, 0, 0], False), ([0.0] * 6, False)],
)
@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
def test_distilled_cosface_is_cut_only_where_all_images_weigh_the_same(
    engine: str, weights: list[float] | None, divides: bool
) -> None:
    """Its divergence is not weighted: of pieces with different weights the step would be another one."""
    objective = objective_of(standard_forms("cosface_distilled")[0], 6, 8)
    given = {} if weights is None else {"sample_weight": np.array(weights, np.float32)}
    per_crop = {name: values for name, values in objective.per_crop.items() if name != "sample_weight"} | given
    objective = replace(objective, per_crop=per_crop)
    runtime = TINY.runtime() if engine == "torch" else tiny_onnx_runtime()
    local = replace(LOCAL, batch_size=0)
    assert runtime.can_divide(objective, local) == divides
    with runtime.in_pieces(2):
        if divides:
            found = runtime.train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, local, 2))
            assert_same(
                found, TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, local, 2)), 5e-5
            )
        elif any(given["sample_weight"]):
            with pytest.raises(ConfigError, match="in memory together"):
                runtime.train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, local, 2))


def test_what_a_step_holds_is_given_back_after_training() -> None:
    runtime = tiny_onnx_runtime()
    first, second = (runtime.train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, LOCAL, 2)) for _ in range(2))
    np.testing.assert_array_equal(first.values, second.values)


@pytest.mark.parametrize(
    "rule",
    [
        StepRule(proximal=0.5),
        StepRule(0.7, np.linspace(-0.01, 0.01, TINY.part().size).astype(np.float32)),
        StepRule(0.7, np.full(TINY.part().size, 0.01, np.float32), 0.3),
    ],
    ids=["proximal", "offset", "all"],
)
def test_step_rules_are_torchs(rule: StepRule) -> None:
    objective = replace(HINGE, step_rule=rule, velocity={"class_embedding": np.full(8, 0.1, np.float32)})
    found = tiny_onnx_runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 2))
    assert_same(found, TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, LOCAL, 2)), 1e-5)
    plain = tiny_onnx_runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, LOCAL, 2))
    assert relative(plain, found) > 1e-3


def test_what_is_not_trained_stays() -> None:
    part = TINY.part()
    trained = tiny_onnx_runtime().train(TrainingJob(TINY.theta, part, CROPS, HINGE, LOCAL, 0))
    stem = TINY.part("stem.*")
    np.testing.assert_array_equal(stem.gather(trained.theta), stem.gather(TINY.theta))
    assert abs(np.linalg.norm(trained.private["class_embedding"]) - 1) < 1e-6


@pytest.mark.parametrize("cache_bytes", [0, 2 * 192, 1 << 20])
def test_remembered_features_change_nothing(cache_bytes: int) -> None:
    runtime = tiny_onnx_runtime(cache_bytes=cache_bytes)
    first = runtime.train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, LOCAL, 1))
    again = runtime.train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, LOCAL, 1))
    np.testing.assert_allclose(first.values, again.values, atol=1e-6)
    moved = TINY.part("stem.*").scatter(TINY.theta, TINY.part("stem.*").gather(TINY.theta) * 1.5)
    other = runtime.train(TrainingJob(moved, TINY.part(), CROPS, HINGE, LOCAL, 1))
    fresh = tiny_onnx_runtime().train(TrainingJob(moved, TINY.part(), CROPS, HINGE, LOCAL, 1))
    np.testing.assert_allclose(other.values, fresh.values, atol=1e-6)


def test_training_stops_when_asked() -> None:
    asked: list[int] = []

    def third() -> bool:
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(LateError, match="nothing was changed"):
        tiny_onnx_runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, LOCAL, 0), third)
    assert len(asked) == 3


def test_refusals() -> None:
    runtime, part = tiny_onnx_runtime(), TINY.part()
    with pytest.raises(ConfigError, match="no images"):
        runtime.train(TrainingJob(TINY.theta, part, CROPS[:0], HINGE, LOCAL, 0))
    with pytest.raises(ConfigError, match="silos"):
        runtime.train(TrainingJob(TINY.theta, part, CROPS, HINGE, LocalSpec(batch_norm="train"), 0))
    with pytest.raises(LayoutMismatchError, match="another model"):
        runtime.train(TrainingJob(TINY.theta, tiny_cnn(4).part(), CROPS, HINGE, LOCAL, 0))
    wrong = replace(HINGE, step_rule=StepRule(offset=np.zeros(3, np.float32)))
    with pytest.raises(LayoutMismatchError, match="offset"):
        runtime.train(TrainingJob(TINY.theta, part, CROPS, wrong, LOCAL, 0))
    with pytest.raises(NotFoundError, match=r"mix\.0\.bias"):
        runtime.train(TrainingJob(TINY.theta, TINY.part("mix.0.bias"), CROPS, HINGE, LOCAL, 0))
    with pytest.raises(NonFiniteError, match=r"local\.lr"):
        runtime.train(
            TrainingJob(
                TINY.theta, part, CROPS, HINGE, LocalSpec(lr=100.0, momentum=0.9, epochs=60, weight_decay=5.0), 0
            )
        )
    with pytest.raises(ConfigError, match="112"):
        runtime.embed(TINY.theta, CROPS[:, :90])
    short = replace(HINGE, private={"class_embedding": np.ones(5, np.float32)})
    with pytest.raises(ConfigError, match="do not fit"):
        runtime.train(TrainingJob(TINY.theta, part, CROPS, short, LOCAL, 0))


def test_nan_parameters_give_no_embedding() -> None:
    huge = np.full_like(TINY.theta, 1e30)
    with pytest.raises(NonFiniteError, match="fetch the model again"):
        tiny_onnx_runtime().embed(huge, CROPS)


WITHOUT_TORCH = """
import sys
import json
from pathlib import Path
import numpy as np
from device_sdk.runtimes import load_runtime
from mien.layout import ParameterLayout
from mien.methods.base import Objective, TrainingJob
from mien.specs import FaceInputSpec, LocalSpec, ModelSpec
layout = ParameterLayout.from_json(json.loads(sys.argv[2]))
spec = ModelSpec("tiny", layout.sha256, FaceInputSpec(dim=8), "made up", "none", ("mix.*", "embedding.*"))
runtime = load_runtime(spec, layout, graphs=Path(sys.argv[1]))
rng = np.random.default_rng(0)
theta = rng.standard_normal(layout.size).astype(np.float32) * 0.1
crops = rng.integers(0, 255, (3, 112, 112, 3), dtype=np.uint8)
assert runtime.embed(theta, crops).shape == (3, 8)
w = np.eye(8, dtype=np.float32)[0]
objective = Objective("positive_hinge", {"class_embedding": w}, constants={"margin": 0.9})
local = LocalSpec(lr=0.1, epochs=2)
trained = runtime.train(TrainingJob(theta, layout.part(spec.trainable), crops, objective, local, 0))
assert trained.loss_after < trained.loss_before
assert not {"torch", "onnx"} & set(sys.modules)
print(type(runtime).__name__)
"""


def test_a_device_embeds_and_trains_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(("torch", "onnx"), tmp_path / "site", monkeypatch)  # onnx only exporting needs
    arguments = [str(FOLDER), json.dumps(TINY.layout.to_json())]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["OnnxRuntime"]


@pytest.mark.parametrize("name", ["sface", "sface_adapter", "mobilefacenet192"])
def test_tails_of_real_recognisers_get_torchs_update_on_faces(name: str, tmp_path: Path) -> None:
    """The part that phones train by default, three steps on batches of 4 and 2 faces of several people."""
    if name == "mobilefacenet192":
        model = import_model(mobilefacenet_file(), "MobileFaceNet.tflite")
    else:
        model = import_model(wheel_model(SFACE.filename), SFACE.filename)
    if name.endswith("_adapter"):
        model = with_adapter(model)
    crops, form = real_crops(6), standard_forms("positive_hinge")[0]
    export_graphs(model.spec, model.layout, folder_for(tmp_path, model.layout), forms=[form])
    runtime = OnnxRuntime(model.spec, model.layout, GraphFolder.open(tmp_path, model.spec, model.layout))
    torch_runtime = TorchRuntime(model.spec, model.layout)
    mean = torch_runtime.embed(model.theta, crops).mean(0)
    objective = replace(
        objective_of(form, 6, model.spec.input.dim),
        private={"class_embedding": mean / np.linalg.norm(mean)},
        constants={"margin": 0.9},
    )
    part, local = model.layout.part(model.spec.trainable), LocalSpec(lr=0.1, steps=3, batch_size=4, momentum=0.9)
    found = runtime.train(TrainingJob(model.theta, part, crops, objective, local, 0))
    expected = torch_runtime.train(TrainingJob(model.theta, part, crops, objective, local, 0))
    assert expected.loss_after < expected.loss_before
    distance = relative(found, expected)  # a number: a failing comparison of arrays would print what faces became
    assert distance <= 1e-4


@pytest.mark.parametrize("is_open", [False, True])
def test_a_gated_model_embeds_as_in_torch(tmp_path: Path, *, is_open: bool) -> None:
    tiny = tiny_of(build_gated(FaceInputSpec(dim=17), base=lambda _spec: tiny_cnn(8).backbone))
    folder = folder_for(tmp_path, tiny.layout)
    export_graphs(tiny.spec, tiny.layout, folder, backbone=tiny.backbone, forms=[])
    part, theta = tiny.part(), tiny.theta
    if is_open:
        theta = part.scatter(theta, np.random.default_rng(0).uniform(-0.5, 0.5, part.size).astype(np.float32))
    runtime = OnnxRuntime(tiny.spec, tiny.layout, GraphFolder.open(tmp_path, tiny.spec, tiny.layout))
    crops = made_up_crops(5, seed=1)
    found, expected = runtime.features(theta, crops), tiny.runtime().features(theta, crops)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert (np.abs(expected[:, :8]).max() > 0.1 * np.abs(expected).max()) == is_open
    np.testing.assert_allclose(runtime.embed(theta, crops), tiny.runtime().embed(theta, crops), atol=1e-5)


def test_onnx_runtime_neither_numbers_the_device_nor_reports(tmp_path: Path) -> None:
    """Its official builds keep an identifier of the device and what they are to send under the cache folder."""
    code = (
        "import sys, device_sdk.runtimes.onnx_runtime, onnxruntime\n"
        "onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    homes = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    graph = next(FOLDER.glob("*/embed.onnx"))
    subprocess.run(
        [sys.executable, "-c", code, str(graph)], cwd=ROOT, env={**environment, **homes}, timeout=240, check=True
    )
    assert list(tmp_path.rglob("*onnxruntime*")) == []
