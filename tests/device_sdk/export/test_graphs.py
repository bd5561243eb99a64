"""What exported graphs are: ordinary, without parameters, one for every size, fresh, and found by what they are for."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from device_sdk.export import decompositions, executorch_rules, rewrites
from device_sdk.export.build import export_graphs
from device_sdk.export.steps import Function, step_function
from device_sdk.runtimes.forms import exportable, form_of, standard_forms
from device_sdk.runtimes.manifest import GraphFolder, cut_for, folder_for
from device_sdk.runtimes.objectives import OBJECTIVES
from mien.backbones import BACKBONES, Backbone, build_backbone, layout_of
from mien.errors import (
    ConfigError,
    CorruptDataError,
    LayoutMismatchError,
    NotFoundError,
    VersionError,
)
from mien.methods.base import Objective
from mien.specs import FaceInputSpec
from tests.graphs import ALL_FORMS, FOLDER, objective_of
from tests.tiny import tiny_cnn

TINY = tiny_cnn()
FILES = sorted(FOLDER.rglob("*.onnx"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_graphs_are_ordinary_and_hold_no_parameters(path: Path) -> None:
    model = onnx.load(path)
    assert model.ir_version == 8
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 13)]
    assert {node.domain for node in model.graph.node} == {""}
    floats = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert all(math.prod(t.dims) == 1 for t in floats)
    assert not {"If", "Loop", "Scan"} & {node.op_type for node in model.graph.node}


def test_the_committed_graphs_are_those_that_the_exporter_makes(tmp_path: Path) -> None:
    forms = [form for form in ALL_FORMS if form.name in ("positive_hinge", "fedfr_contrastive_branch_joint")]
    manifest = export_graphs(
        TINY.spec, TINY.layout, folder_for(tmp_path, TINY.layout), forms=forms, backbone=TINY.backbone
    )
    assert len(manifest.graphs) == 1 + 2 + 2 * len(forms)
    for graph in manifest.graphs:
        fresh = (tmp_path / TINY.layout.sha256 / graph.file).read_bytes()
        committed = (FOLDER / TINY.layout.sha256 / graph.file).read_bytes()
        assert fresh == committed, f"{graph.file}: the exporter changed; run python -m tests.graphs"


def test_exporting_again_adds(tmp_path: Path) -> None:
    hinge, softmax = standard_forms("positive_hinge")[:1], standard_forms("softmax")
    export_graphs(TINY.spec, TINY.layout, folder_for(tmp_path, TINY.layout), forms=hinge, backbone=TINY.backbone)
    other = [TINY.part("mix.0.bias")]  # begins at the same stage as the default part
    export_graphs(
        TINY.spec, TINY.layout, folder_for(tmp_path, TINY.layout), forms=hinge, parts=other, backbone=TINY.backbone
    )
    both = export_graphs(
        TINY.spec, TINY.layout, folder_for(tmp_path, TINY.layout), forms=softmax, backbone=TINY.backbone
    )
    folder = GraphFolder.open(tmp_path, TINY.spec, TINY.layout)
    assert folder.manifest == both
    found = [folder.find("train", stage="mix", part=p.names, form="positive_hinge") for p in (TINY.part(), *other)]
    assert len({graph.file for graph in found}) == 2
    assert folder.find("train", stage="mix", part=TINY.part().names, form="softmax")


def test_every_objective_is_exported_or_refused_by_name() -> None:
    for name in OBJECTIVES:
        if name in exportable():
            for form in standard_forms(name):
                assert form_of(objective_of(form, 4, 8)) == form
        else:
            with pytest.raises(ConfigError, match=f"'{name}' compares faces of two domains"):
                standard_forms(name)
    assert set(exportable()) <= set(OBJECTIVES)
    assert len({form.name for form in ALL_FORMS}) == len(ALL_FORMS)


def test_an_objective_with_other_tensors_is_refused() -> None:
    (form,) = standard_forms("cosface")
    good = objective_of(form, 4, 8)
    with pytest.raises(ConfigError, match=r"lacks \['target'\]"):
        form_of(dataclasses.replace(good, per_crop={}))
    with pytest.raises(ConfigError, match=r"has \['surprise'\]"):
        form_of(dataclasses.replace(good, private={**good.private, "surprise": np.zeros(1, np.float32)}))
    with pytest.raises(ConfigError, match=r"has \['x'\]"):
        form_of(dataclasses.replace(good, fixed={"x": np.zeros(1, np.float32)}))
    (moments,) = standard_forms("moment_softmax")
    with pytest.raises(ConfigError, match=r"lacks \['class_embeddings', 'mean', 'covariance'\]"):
        form_of(dataclasses.replace(objective_of(moments, 4, 8), fixed={}))
    with pytest.raises(ConfigError, match="'nonsense' is unknown"):
        form_of(Objective("nonsense"))


def test_arcface_has_its_margin_built_in() -> None:
    (half,), (third,) = standard_forms("arcface"), standard_forms("arcface", arcface_margin=0.3)
    assert half.name != third.name
    assert "margin" not in half.constants


@pytest.mark.parametrize("name", [name for name, entry in BACKBONES.items() if entry.for_phones])
def test_cuts_are_those_of_the_backbone(name: str) -> None:
    backbone = build_backbone(name)
    layout = layout_of(backbone)
    for patterns in (backbone.default_trainable, ("*",)):
        part = layout.part(patterns)
        cut, split = cut_for(part), backbone.split_for(part.names)
        assert cut.stage == backbone.stage_names[split]
        trunk = () if cut.trunk is None else cut.trunk.names
        assert (*trunk, *cut.tail.names) == tuple(layout.offsets)
        assert set(part.names) <= set(cut.tail.names)
        assert cut.word == ("tail" if split else "full")


def test_a_phones_backbone_becomes_one_small_graph_for_every_batch() -> None:
    backbone = build_backbone("mobilefacenet192")
    part = layout_of(backbone).part(backbone.default_trainable)
    form = standard_forms("positive_hinge")[0]
    model = step_function(backbone, part, form).to_onnx()
    given = {item.name: item for item in model.graph.input}
    assert [d.dim_param or d.dim_value for d in given["x"].type.tensor_type.shape.dim] == ["B", 128, 7, 7]
    assert given["trained"].type.tensor_type.shape.dim[0].dim_value == part.size == 230_144
    assert len(model.SerializeToString()) < 60_000


def test_backbones_that_no_graph_holds_are_refused(tmp_path: Path) -> None:
    with_norm = tiny_cnn(batch_norm=True)
    with pytest.raises(ConfigError, match="BatchNorm"):
        export_graphs(with_norm.spec, with_norm.layout, tmp_path, backbone=with_norm.backbone)
    with pytest.raises(LayoutMismatchError, match="upgrade"):
        export_graphs(TINY.spec, TINY.layout, tmp_path, backbone=tiny_cnn(16).backbone)
    stages = {"embedding": nn.Sequential(nn.MaxPool2d(56), nn.Flatten(), nn.Linear(12, 8))}
    pooled = Backbone("pooled", FaceInputSpec(dim=8), stages)
    part = layout_of(pooled).part()
    with pytest.raises(ConfigError, match=r"no rule for the operator aten\.max_pool2d"):
        step_function(pooled, part, standard_forms("positive_hinge")[0]).to_onnx()


def test_a_size_that_would_be_fixed_is_an_error() -> None:
    with pytest.raises(ConfigError, match="one size of K"):
        Function(lambda at: {"y": at["x"] * int(at["x"].shape[0])}, {"x": ("K",)}).to_onnx()


def test_sizes_are_computed_from_the_inputs() -> None:
    """Products, sums and broadcasts of symbolic sizes."""

    def run(at: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        both = torch.cat([at["a"], at["b"]])  # L + G rows
        return {"y": both.reshape(-1), "n": both[:, None, :].expand(-1, at["x"].shape[0], -1).sum()}

    model = Function(run, {"a": ("L", 2), "b": ("G", 2), "x": ("B",)}).to_onnx()  # type: ignore[arg-type]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    a, b = np.arange(4, dtype=np.float32).reshape(2, 2), np.ones((3, 2), np.float32)
    y, n = session.run(None, {"a": a, "b": b, "x": np.zeros(6, np.float32)})
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 1, 1, 1, 1, 1, 1])
    assert n == 6 * 12


def copied(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "graphs")
    return tmp_path / "graphs"


def test_damage_is_noticed(tmp_path: Path) -> None:
    root = copied(tmp_path)
    folder = GraphFolder.open(root, TINY.spec, TINY.layout)
    graph = folder.find("embed")
    path = folder.folder / graph.file
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(CorruptDataError, match="was changed"):
        folder.read(graph)
    path.unlink()
    with pytest.raises(CorruptDataError, match="is missing"):
        folder.read(graph)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, VersionError),
        ({"layout_sha256": "0" * 64}, LayoutMismatchError),
        ({"surprise": 1}, CorruptDataError),
        ({"graphs": [{"file": "../x.onnx", "kind": "embed", "sha256": "", "size_bytes": 0}]}, CorruptDataError),
    ],
)
def test_lists_of_graphs_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, object], error: type[Exception]
) -> None:
    path = copied(tmp_path) / TINY.layout.sha256 / "graphs.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(error):
        GraphFolder.open(tmp_path / "graphs", TINY.spec, TINY.layout)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"`device_sdk\.export` writes some"):
        GraphFolder.open(tmp_path, TINY.spec, TINY.layout)
    folder = GraphFolder.open(FOLDER, TINY.spec, TINY.layout)
    with pytest.raises(NotFoundError, match=r"trains mix\.0\.bias with objective softmax"):
        folder.find("train", stage="mix", part=("mix.0.bias",), form="softmax")
    other = dataclasses.replace(TINY.spec, input=dataclasses.replace(TINY.spec.input, colour="BGR"))
    with pytest.raises(LayoutMismatchError, match="other crops"):
        GraphFolder.open(FOLDER, other, TINY.layout)


def test_no_activation_is_kept_that_its_input_gives_again() -> None:
    (form,) = standard_forms("cosface")
    mix = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.PReLU(4), nn.Conv2d(4, 4, 1))
    stages = {"pool": nn.AvgPool2d(28), "mix": mix, "embedding": nn.Sequential(nn.Flatten(), nn.Linear(64, 8))}
    backbone = Backbone("mixed", FaceInputSpec(dim=8), stages).requires_grad_(False)
    function = step_function(backbone, layout_of(backbone).part(("*",)), form)
    for traced in (
        function.traced(decompositions.table()),
        function.traced(executorch_rules.table(), rewrites.keep_turned),
    ):
        nodes = list(traced.module.graph.nodes)
        results: Any = traced.module.graph.output_node().args[0]
        loss = results[traced.outputs.index("loss")]
        while "detach" in str(loss.target) or "alias" in str(loss.target):
            loss = loss.args[0]
        end = nodes.index(loss)
        activations = [node for node in nodes if rewrites._input_of_prelu(node) is not None]
        forward = [node for node in activations if nodes.index(node) < end]
        assert (len(forward), len(activations)) == (1, 2)
        assert all(nodes.index(user) < end for node in forward for user in node.users)


def test_maps_stay_turned_from_rule_to_rule() -> None:
    """Between two convolutions with a PReLU and a sum of two branches nothing is turned, forwards or backwards."""
    (form,) = standard_forms("positive_hinge")[:1]

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
            self.act = nn.PReLU(3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.act(self.first(x) + self.second(x))
            return y

    stages = {"a": Residual(), "b": Residual(), "embedding": nn.Sequential(nn.Flatten(), nn.Linear(37632, 8))}
    backbone = Backbone("residual", FaceInputSpec(dim=8), stages).requires_grad_(False)
    function = step_function(backbone, layout_of(backbone).part(("*",)), form)
    module = function.traced(executorch_rules.table(), rewrites.keep_turned).module
    turned = [node for node in module.graph.nodes if rewrites._turned_from(node) is not None]
    # The crops, what the linear layer flattens, and the gradient that comes back through it.
    assert len(turned) == 3


def test_a_linear_layers_weights_are_not_copied() -> None:
    (form,) = standard_forms("positive_hinge")[:1]
    model = step_function(TINY.backbone, TINY.part("mix.0.bias"), form).to_onnx()
    turned = [node.input[0] for node in model.graph.node if node.op_type == "Transpose"]
    assert "parameter.embedding.1.weight" not in turned
    assert any(node.op_type == "Gemm" and "parameter.embedding.1.weight" in node.input for node in model.graph.node)
