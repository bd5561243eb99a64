"""`python -m device_sdk.export` as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from device_sdk.export.__main__ import app
from device_sdk.runtimes.manifest import GraphFolder
from mien.backbones import build_backbone, layout_of
from mien.errors import ConfigError, MienError, NotFoundError
from mien.protocol.canonical import model_to_json
from mien.specs import ModelSpec

BACKBONE = build_backbone("mobilefacenet_folded")
LAYOUT = layout_of(BACKBONE)
SPEC = ModelSpec(BACKBONE.name, LAYOUT.sha256, BACKBONE.input_spec, "random weights", "none", ("embedding.*",))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.json").write_bytes(model_to_json(SPEC, LAYOUT))
    return folder


def run(*arguments: str | Path) -> Result:
    """Run the command; errors of Mien's come out as they are raised."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize("beside", [True, False])
def test_graphs_of_an_exported_model(model: Path, tmp_path: Path, beside: bool) -> None:
    where = () if beside else ("--out", tmp_path / "graphs")
    done = run(model, *where, "--objective", "positive_hinge", "--json")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    graphs = GraphFolder.at(model, SPEC, LAYOUT) if beside else GraphFolder.open(tmp_path / "graphs", SPEC, LAYOUT)
    assert Path(result["folder"]) == graphs.folder
    assert result["num_graphs"] == len(graphs.manifest.graphs) == 7  # three of inference, two steps, two losses
    assert graphs.find("train", stage="embedding", part=LAYOUT.part(("embedding.*",)).names, form="positive_hinge")


def test_an_export_that_was_stopped_goes_on(model: Path) -> None:
    assert run(model, "--objective", "positive_hinge", "--json").exit_code == 0
    kept = model / "train_positive_hinge_tail.onnx"
    kept.write_bytes(b"as it was")
    (model / "tail_embedding.onnx").unlink()
    assert run(model, "--objective", "positive_hinge", "--objective", "softmax", "--keep", "--json").exit_code == 0
    assert kept.read_bytes() == b"as it was"
    graphs, part = GraphFolder.at(model, SPEC, LAYOUT), LAYOUT.part(("embedding.*",)).names
    assert graphs.read(graphs.find("tail", stage="embedding"))
    assert graphs.read(graphs.find("train", stage="embedding", part=part, form="softmax"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("--objective", "dan"), ConfigError, "'dan' compares faces of two domains"),
        (("--objective", "hinge"), ConfigError, "'hinge' is unknown"),
        (("--trainable", "embeding.*"), ConfigError, "matches no tensor"),
        (("--engine", "tensorflow"), ConfigError, "no engine 'tensorflow' to export for; choose from onnxruntime"),
    ],
)
def test_refusals(model: Path, tmp_path: Path, options: tuple[str, ...], error: type[MienError], message: str) -> None:
    with pytest.raises(error, match=message):
        run(model, "--out", tmp_path / "graphs", *options)
    assert not (tmp_path / "graphs").exists()


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="mien-coordinator model export"):
        run(tmp_path, "--out", tmp_path / "graphs")
