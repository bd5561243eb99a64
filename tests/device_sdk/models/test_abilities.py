"""What a device says at check-in that it can train: every backbone with torch, those with graphs without it."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from device_sdk.device import Device
from device_sdk.models.abilities import UNSAID, Abilities, abilities_of
from device_sdk.runtimes import RuntimeName
from device_sdk.runtimes.forms import ObjectiveForm, form_of
from device_sdk.runtimes.manifest import GraphManifest
from mien.backbones import BACKBONES
from mien.layout import Vector
from mien.methods import METHODS
from mien.methods.base import Crops, Embeddings, TrainingJob
from mien.models.known_models import FACE_INPUTS
from mien.specs import FaceInputSpec
from tests.graphs import ALL_FORMS, FOLDER
from tests.mien.methods.test_methods import input_of, task_of
from tests.tiny import tiny_cnn

TINY = tiny_cnn()


def test_the_names_are_those_of_the_backbones() -> None:
    assert set(FACE_INPUTS) == set(BACKBONES)


def test_torch_trains_all_and_other_engines_what_they_have_graphs_for(tmp_path: Path) -> None:
    assert abilities_of("torch", tmp_path).backbones == tuple(FACE_INPUTS)
    for engine in ("onnxruntime", "executorch"):
        found = abilities_of(engine, FOLDER)
        assert (found.backbones, found.engines) == (("tiny",), (engine,))
        none = abilities_of(engine, tmp_path)
        assert (none.backbones, none.engines) == ((), (engine,))


def test_graphs_that_only_embed_or_cannot_be_read_train_nothing(tmp_path: Path) -> None:
    (listing,) = FOLDER.glob("*/graphs.json")
    manifest = GraphManifest.from_json(listing.read_bytes())
    for name, kinds in (("e" * 64, ("embed", "trunk", "tail", "train")), ("d" * 64, ("embed", "trunk", "tail"))):
        kept = tuple(each for each in manifest.graphs if each.kind in kinds)
        folder = shutil.copytree(listing.parent, tmp_path / name)
        (folder / "graphs.json").write_bytes(GraphManifest(name[0], name, FaceInputSpec(), kept).to_json())
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "graphs.json").write_bytes(b"{")
    found = abilities_of("onnxruntime", tmp_path)
    assert found.backbones == ("d", "e"), "both embed"
    shutil.rmtree(tmp_path / ("e" * 64))
    embeds = abilities_of("onnxruntime", tmp_path)
    assert embeds.backbones == ("d",)
    assert not any(embeds.parts.values())
    assert set(embeds.parts).isdisjoint({*found.parts, TINY.layout.part().sha256})


@pytest.mark.parametrize(("engine", "suffix"), [("onnxruntime", ".onnx"), ("executorch", ".pte")])
def test_graphs_count_whose_files_are_there(tmp_path: Path, engine: RuntimeName, suffix: str) -> None:
    """A phone fetches those of one engine, and a fetch may stop half-way."""
    (listing,) = FOLDER.glob("*/graphs.json")
    folder = shutil.copytree(listing.parent, tmp_path / listing.parent.name)
    whole = TINY.layout.part().sha256
    assert {"cosface", "positive_hinge"} <= set(abilities_of(engine, tmp_path).parts[whole])
    (folder / f"train_cosface_full{suffix}").unlink()
    left = abilities_of(engine, tmp_path).parts[whole]
    assert ("cosface" in left, "positive_hinge" in left) == (False, True)
    (folder / f"embed{suffix}").rename(tmp_path / "aside")
    assert abilities_of(engine, tmp_path) == Abilities((), (engine,))
    manifest = GraphManifest.from_json(listing.read_bytes())
    sha256 = next(each.sha256 for each in manifest.graphs if each.file == f"embed{suffix}")
    (tmp_path / "aside").rename(folder / sha256)  # as releases bring it
    assert abilities_of(engine, tmp_path).parts[whole] == left
    for path in folder.glob(f"*{suffix}"):
        path.unlink()
    assert abilities_of(engine, tmp_path) == Abilities((), (engine,))


def test_graphs_of_another_layout_train_no_part_of_this_one(tmp_path: Path) -> None:
    (listing,) = FOLDER.glob("*/graphs.json")
    folder = shutil.copytree(listing.parent, tmp_path / ("a" * 64))
    manifest = dataclasses.replace(GraphManifest.from_json(listing.read_bytes()), layout_sha256="a" * 64)
    (folder / "graphs.json").write_bytes(manifest.to_json())
    found = abilities_of("onnxruntime", tmp_path)
    assert found.backbones == ("tiny",)
    assert not set(found.parts) & set(abilities_of("onnxruntime", FOLDER).parts)
    folder.rename(tmp_path / listing.parent.name)  # where they are looked for, and are not of it
    assert abilities_of("onnxruntime", tmp_path).parts == {}


def test_parts_are_those_of_the_model_with_each_forms_objective() -> None:
    tail = TINY.layout.part(TINY.spec.trainable)
    parts = abilities_of("onnxruntime", FOLDER).parts
    assert tail.sha256 in parts
    assert set(parts[tail.sha256]) == {form.name for form in ALL_FORMS} | {"fedfr", "positive_hinge", "softmax",
        "cosface", "cosface_distilled"}  # fmt: skip
    assert "arcface_margin0.5" in parts[tail.sha256]
    assert abilities_of("torch", FOLDER).parts == {}


@dataclasses.dataclass
class HeardError(Exception):
    """What a device half set out to minimise."""

    form: ObjectiveForm


class Listening:
    """A runtime that embeds, and tells what it was to train."""

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        return TINY.runtime().embed(theta, crops)

    def train(self, job: TrainingJob, *_: object) -> NoReturn:
        raise HeardError(form_of(job.objective))


HEADS = ("softmax", "cosface", "arcface")
LOSSES = [("positive", {}), ("softmax", {}), ("cosface", {"margin": 0.2}), ("arcface", {"margin": 0.4})]
OPTIONS: list[tuple[str, dict[str, object]]] = [
    *((name, {"loss": loss, **more}) for name in ("fedprox", "mime", "scaffold") for loss, more in LOSSES),
    *(("pfm_fv", {"validation": "off", "loss": loss, **more}) for loss, more in LOSSES),
    ("pfm_fv", {"validation": "off"}),
    ("fedavg", {}),
    ("fedavg", {"loss": "cosface"}),
    ("fedface", {}),
    ("fedface", {"private_form": "hinge"}),
    ("fedaws", {}),
    ("fedaws", {"private_form": "hinge"}),
    ("fixed_embedding", {}),
    ("fedfr", {"public_classes": 4}),
    *(("fedgc", {"identities": 2, "head": {"kind": head, "margin": 0.3}}) for head in HEADS),
    *(("fedfr_uda", {"head": head, "margin": 0.3}) for head in HEADS),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_a_task_is_for_phones_with_the_objective_that_its_method_minimises(
    name: str, options: dict[str, object]
) -> None:
    assert {name for name, _ in OPTIONS} == {name for name, method in METHODS.items() if method.is_minimised}
    task = task_of(METHODS[name], options=options)
    inp = input_of(task, num_images=4)
    labels = None if name in ("fedface", "fedaws", "fedfr_uda") else np.arange(4) % 2
    with pytest.raises(HeardError) as heard:
        METHODS[name].device_round(dataclasses.replace(inp, labels=labels), Listening())
    form = heard.value.form
    said = METHODS[name].requirements(task).objective
    assert said in (form.name, form.objective)
    assert (said == form.name) or form.objective != "arcface", "its margin is built in"


def test_an_engine_that_a_program_brought_says_nothing(tmp_path: Path) -> None:
    def loader(_model: object) -> object:
        raise AssertionError

    own = Device.open(tmp_path / "a", options={"keystore": "file"}, runtime_loader=loader)  # type: ignore[arg-type]
    with own as device, Device.open(tmp_path / "b", options={"keystore": "file", "runtime": "torch"}) as usual:
        assert device._abilities() == UNSAID
        assert usual._abilities().engines == ("torch",)
