"""What a device says at check-in that it can train: every backbone with torch, those with graphs without it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from device_sdk.abilities import UNSAID, abilities_of
from device_sdk.device import Device
from device_sdk.export.manifest import GraphManifest
from mien.backbones import BACKBONES
from mien.known_models import BACKBONES as NAMES
from mien.specs import FaceInputSpec
from tests.graphs import FOLDER


def test_the_names_are_those_of_the_backbones() -> None:
    assert set(NAMES) == set(BACKBONES)


def test_torch_trains_all_and_other_engines_what_they_have_graphs_for(tmp_path: Path) -> None:
    assert abilities_of("torch", tmp_path).backbones == NAMES
    for engine in ("onnxruntime", "executorch"):
        found = abilities_of(engine, FOLDER)
        assert (found.backbones, found.engines) == (("tiny",), (engine,))
        none = abilities_of(engine, tmp_path)
        assert (none.backbones, none.engines) == ((), (engine,))


def test_graphs_that_only_embed_or_cannot_be_read_train_nothing(tmp_path: Path) -> None:
    (listing,) = FOLDER.glob("*/graphs.json")
    manifest = GraphManifest.from_json(listing.read_bytes())
    only = dataclasses.replace(manifest, graphs=tuple(each for each in manifest.graphs if each.kind != "train"))
    other = GraphManifest("other", "e" * 64, FaceInputSpec(), manifest.graphs)
    for name, data in (("embeds", only.to_json()), ("damaged", b"{"), ("other", other.to_json())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "graphs.json").write_bytes(data)
    assert abilities_of("onnxruntime", tmp_path).backbones == ("other",)


def test_an_engine_that_a_program_brought_says_nothing(tmp_path: Path) -> None:
    def loader(_model: object) -> object:
        raise AssertionError

    own = Device.open(tmp_path / "a", options={"keystore": "file"}, runtime_loader=loader)  # type: ignore[arg-type]
    with own as device, Device.open(tmp_path / "b", options={"keystore": "file", "runtime": "torch"}) as usual:
        assert device._abilities() == UNSAID
        assert usual._abilities().engines == ("torch",)
