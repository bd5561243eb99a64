"""What engines cost on this device: figures of those that can run, reasons for the others, a choice that is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk.config import load_config
from device_sdk.models.models import Model
from device_sdk.program.bench import EngineFigures, fastest, measure_engines
from device_sdk.program.kept_settings import keep_setting
from mien.errors import MissingDependencyError
from mien.layout import model_id
from tests.graphs import FOLDER
from tests.tiny import tiny_cnn

TINY = tiny_cnn()
MODEL = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)


def test_engines_that_can_run_the_model_have_figures() -> None:
    torch, onnx, pte = measure_engines(MODEL, FOLDER)
    assert (torch.engine, torch.embed_ms) == ("torch", None)  # the tests' network is no backbone of the program's
    assert "tiny" in torch.lacks
    for figures in (onnx, pte):
        assert figures.lacks == ""
        # The bounds are for wrong units, not for speed; the system may count a process' time in coarse grains.
        assert figures.embed_ms is not None
        assert figures.step_ms is not None
        assert 0 <= figures.embed_ms < 60_000
        assert 0 < figures.step_ms < 60_000
        assert figures.verify_ms is not None
        assert figures.verify_ms > 0
        assert figures.step_mb is None or 0 <= figures.step_mb < 500


def test_engines_without_graphs_say_so(tmp_path: Path) -> None:
    _, onnx, pte = measure_engines(MODEL, tmp_path)
    for figures in (onnx, pte):
        assert figures.embed_ms is None
        assert "there are no graphs" in figures.lacks
        assert f"`mien-device update --runtime {figures.engine}` fetches those of a signed release" in figures.lacks


def test_the_fastest_is_that_with_the_shortest_step_and_to_verify_where_no_step_was_measured() -> None:
    torch = EngineFigures("torch", 1.0, 9.0, 50.0)
    onnx = EngineFigures("onnxruntime", 2.0, 5.0, 20.0)
    no_step = EngineFigures("executorch", 0.5, lacks="no graph")
    gone = EngineFigures("torch", lacks="not installed")
    assert fastest([torch, onnx, no_step]) == onnx
    assert fastest([gone, no_step]) == no_step
    slow_to_load, slow_to_embed = EngineFigures("torch", 1.0, verify_ms=1500.0), EngineFigures("onnxruntime", 2.0)
    assert fastest([slow_to_load, replace(slow_to_embed, verify_ms=90.0)]).engine == "onnxruntime"
    with pytest.raises(MissingDependencyError, match="not installed"):
        fastest([gone])


def test_where_nothing_is_trained_no_step_is_measured() -> None:
    _, onnx, pte = measure_engines(MODEL, FOLDER, trains=False)
    for figures in (onnx, pte):
        assert (figures.embed_ms is not None, figures.step_ms, figures.lacks) == (True, None, "")


@pytest.mark.parametrize(
    "before",
    [
        "",
        "threads = 2\n\n[verification]\nmax_fmr = 0.01\n",
        'runtime = "torch" # the old one\nthreads = 2\n[verification]\nmax_fmr = 0.01\n',
    ],
)
def test_the_choice_is_kept_and_nothing_else_changed(tmp_path: Path, before: str) -> None:
    path = tmp_path / "device.toml"
    if before:
        path.write_text(before)
    keep_setting(path, "runtime", "onnxruntime")
    values = load_config(path).config
    assert values.runtime == "onnxruntime"
    assert values.threads == (2 if before else 1)
    assert values.verification.max_fmr == (0.01 if before else 0.001)
