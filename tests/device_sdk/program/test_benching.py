"""What `mien-device bench` keeps and removes: nothing that the owner set, or another process needs, without a look."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from device_sdk.config import InferenceConfig, load_config
from device_sdk.program.bench import EngineFigures, fastest
from device_sdk.program.benching import Looked, kept
from device_sdk.program.tiers import FormFigures

TORCH = EngineFigures("torch", 20.0, 1.0, 1.0, embed_mb=500.0, verify_ms=900.0)
FLOAT32 = FormFigures("float32", 900.0, 500.0, 40.0)


def looked(tier: str, unseen: str) -> Looked:
    """Return a look at float32 alone, on a device whose owner set `tier`."""
    return Looked((TORCH,), TORCH, (FLOAT32,), FLOAT32, InferenceConfig(tier), unseen)


@pytest.mark.parametrize("unseen", ["Variants of the model were not looked at.", "A newer model is released."])
def test_without_a_look_at_variants_the_form_stays_as_the_owner_set_it(
    tmp_path: Path, unseen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "device.toml"
    config.write_text('[inference]\ntier = "int8"\n')
    found = looked("int8", unseen)
    tier = kept(found, tmp_path, None)
    values = load_config(config).config
    assert (tier, values.inference.tier, values.runtime) == ("int8", "int8", "torch")
    found.show(tier, None, config, saved=True)
    assert "the model stays in int8 (inference.tier)." in " ".join(capsys.readouterr().out.split())
    assert kept(found, tmp_path, "float32") == "float32"
    assert load_config(config).config.inference.tier == "float32"


def test_after_a_look_the_chosen_form_is_kept(tmp_path: Path) -> None:
    (tmp_path / "device.toml").write_text('[inference]\ntier = "int8"\n')
    assert kept(looked("int8", ""), tmp_path, None) == "float32"
    assert load_config(tmp_path / "device.toml").config.inference.tier == "float32"


@pytest.mark.parametrize(
    ("trains", "auto_embeds", "kept_as"),
    [
        (True, "torch", "torch"),
        (False, "onnxruntime", "torch"),
        (False, "torch", "auto"),
    ],
)
def test_a_device_in_no_fleet_keeps_the_choice_open_where_it_embeds_by_that_engine_anyway(
    tmp_path: Path, trains: bool, auto_embeds: str, kept_as: str
) -> None:
    kept(dataclasses.replace(looked("float32", ""), trains=trains, auto_embeds=auto_embeds), tmp_path, None)
    assert load_config(tmp_path / "device.toml").config.runtime == kept_as


@pytest.mark.parametrize(
    ("onnx", "auto_trains", "kept_as", "of_auto"),
    [
        (EngineFigures("onnxruntime", 30.0, verify_ms=200.0, lacks="it has no graph of a step"), "torch", "auto", True),
        (EngineFigures("onnxruntime", 30.0, 9.0, verify_ms=200.0), "torch", "auto", True),
        (EngineFigures("onnxruntime", 10.0, verify_ms=950.0, lacks="it has no graph of a step"), "torch", "auto", True),
        (EngineFigures("onnxruntime", 10.0, 9.0, verify_ms=950.0), "torch", "torch", False),
        (
            EngineFigures("onnxruntime", 10.0, verify_ms=950.0, lacks="it has no graph of a step"),
            "executorch",
            "torch",
            False,
        ),
        (EngineFigures("onnxruntime", 30.0, 0.5, verify_ms=200.0), "torch", "onnxruntime", False),
    ],
)
def test_in_a_fleet_auto_is_kept_where_no_other_engine_trains_or_its_two_are_the_fastest(
    tmp_path: Path,
    onnx: EngineFigures,
    auto_trains: str,
    kept_as: str,
    of_auto: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Verifying is what phones do most: with torch alone it took four times as long."""
    engines = (TORCH, onnx)
    pair = {"auto_embeds": "onnxruntime", "auto_trains": auto_trains}
    found = dataclasses.replace(looked("float32", ""), engines=engines, fastest=fastest(engines), **pair)
    kept(found, tmp_path, None)
    config = tmp_path / "device.toml"
    assert load_config(config).config.runtime == kept_as
    found.show("float32", None, config, saved=True)
    told = f'Kept: runtime = "{kept_as}" in {config}{" (onnxruntime embeds, torch trains)" if of_auto else ""}.'
    assert capsys.readouterr().out.splitlines()[-1] == told
    found.show("float32", None, config, saved=False)
    assert "Kept" not in capsys.readouterr().out


def test_why_an_engine_was_not_measured_is_told_whole(capsys: pytest.CaptureFixture[str]) -> None:
    why = "there are no graphs in /home/somebody/.local/share/mien/device/graphs/0123456789abcdef: fetch them"
    found = dataclasses.replace(looked("float32", ""), engines=(TORCH, EngineFigures("onnxruntime", lacks=why)))
    found.show("float32", None, Path("device.toml"), saved=False)
    assert f"onnxruntime: {why}." in capsys.readouterr().out.splitlines()


def test_what_a_dash_is_and_why_an_engine_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    onnx = EngineFigures("onnxruntime", 300.0, lacks="it has no graph of a step")
    found = dataclasses.replace(looked("float32", ""), engines=(TORCH, onnx))
    found.show("float32", None, Path("device.toml"), saved=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "torch has the shortest training step. A dash: the engine cannot do that here" in said
    dataclasses.replace(found, engines=(TORCH,)).show("float32", None, Path("device.toml"), saved=False)
    assert "dash" not in capsys.readouterr().out


def test_in_no_fleet_the_engine_is_chosen_by_what_it_does_there(capsys: pytest.CaptureFixture[str]) -> None:
    engines = (EngineFigures("torch", 20.0, verify_ms=1500.0), EngineFigures("onnxruntime", 30.0, verify_ms=90.0))
    found = dataclasses.replace(looked("float32", ""), engines=engines, fastest=fastest(engines), trains=False)
    found.show("float32", None, Path("device.toml"), saved=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "onnxruntime is the fastest to verify. A device in no fleet trains nothing." in said
    assert "step" not in said


@pytest.mark.parametrize("saved", [True, False])
def test_a_threshold_by_hand_is_named_beside_the_form(capsys: pytest.CaptureFixture[str], saved: bool) -> None:
    for threshold in (0.42, None):
        found = dataclasses.replace(looked("int8", ""), threshold_by_hand=threshold)
        assert found.to_plain()["threshold_by_hand"] == threshold
        found.show("int8", "int8" if saved else None, Path("device.toml"), saved=saved)
        said = "it is right for int8 only" in " ".join(capsys.readouterr().out.split())
        assert said == (threshold is not None)
