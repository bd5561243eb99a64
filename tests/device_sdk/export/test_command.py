"""`python -m device_sdk.export` as people run it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from device_sdk.export.__main__ import app
from device_sdk.runtimes.manifest import GraphFolder, folder_for
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


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model's folder with the graphs of one objective, which take seconds to trace, and where they lie."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "model.json").write_bytes(model_to_json(SPEC, LAYOUT))
    done = run(folder, "--objective", "positive_hinge", "--json")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert result["num_graphs"] == 7  # three of inference, two steps, two losses
    return folder, Path(result["folder"])


def has_all(graphs: GraphFolder) -> bool:
    """Whether a folder has all graphs of the objective, and finds the one that trains by what it is."""
    part = LAYOUT.part(("embedding.*",)).names
    found = graphs.find("train", stage="embedding", part=part, form="positive_hinge")
    return len(graphs.manifest.graphs) == 7 and bool(graphs.read(found))


def test_graphs_lie_beside_an_exported_model(exported: tuple[Path, Path]) -> None:
    folder, told = exported
    graphs = GraphFolder.at(folder, SPEC, LAYOUT)
    assert told == graphs.folder
    assert has_all(graphs)


def test_graphs_lie_where_they_are_asked_for(model: Path, exported: tuple[Path, Path], tmp_path: Path) -> None:
    """All but one are there already, of an export that was stopped."""
    out = tmp_path / "graphs"
    there = Path(shutil.copytree(exported[1], folder_for(out, LAYOUT)))
    (there / "tail_embedding.onnx").unlink()
    done = run(model, "--out", out, "--objective", "positive_hinge", "--keep", "--json")
    assert done.exit_code == 0
    graphs = GraphFolder.open(out, SPEC, LAYOUT)
    assert Path(json.loads(done.stdout)["folder"]) == graphs.folder == there
    assert has_all(graphs)
    assert (there / "tail_embedding.onnx").is_file()
    assert [path.name for path in model.iterdir()] == ["model.json"]


def test_an_export_that_was_stopped_goes_on(exported: tuple[Path, Path], tmp_path: Path) -> None:
    model = Path(shutil.copytree(exported[0], tmp_path / "exported"))
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
