"""Making an int8 variant: what is quantised, on whose faces it is calibrated and measured, what is signed with it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from coordinator.release.signing import sign_folder
from device_sdk.export.variants import Faces, faces_in, make_int8
from device_sdk.models.releases import verify_folder
from device_sdk.models.variants import load_variant
from device_sdk.runtimes.variant_session import INPUT
from mien.errors import ConfigError, CorruptDataError, LayoutMismatchError
from mien.layout import model_id
from mien.methods.base import Crops, Embeddings
from mien.models import bundles
from mien.models.variants import Variant, VariantList
from mien.protocol.canonical import model_to_json
from tests.device_sdk.models.test_releases import KEY
from tests.tiny import Tiny, made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
MODEL = model_id(TINY.layout.sha256, TINY.theta)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
FACES = Faces(
    np.concatenate([made_up_crops(6, seed=seed, spread=20) for seed in range(28)]),
    np.repeat(np.arange(28), 6),
    "made up",
    "d" * 64,
)


def folder_of(model: Tiny, folder: Path) -> Path:
    """Write a model as `model export` does."""
    folder.mkdir()
    (folder / "model.json").write_bytes(model_to_json(model.spec, model.layout))
    (folder / "theta.f32").write_bytes(np.ascontiguousarray(model.theta, "<f4").tobytes())
    return folder


def made(folder: Path, faces: Faces = FACES) -> Variant:
    return make_int8(TINY.spec, TINY.layout, TINY.theta, faces, folder, NOW, backbone=TINY.backbone)


def with_exact_sums(data: bytes, crops: Crops) -> Embeddings:
    """Return a variant's embeddings with sums of int8 as Arm and VNNI have them; other processors let them saturate."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    embeddings: Embeddings = session.run(None, {INPUT: TINY.spec.input.network_input(crops)})[0]
    return embeddings


def test_an_int8_variant_embeds_like_its_model_and_says_what_it_costs(tmp_path: Path) -> None:
    folder = folder_of(TINY, tmp_path / "model")
    variant = made(folder)
    assert (variant.tier, variant.model_id, variant.engine) == ("int8", MODEL, "onnxruntime")
    data = (folder / "int8.variant").read_bytes()
    crops = made_up_crops(5, seed=99)
    expected = TINY.runtime().embed(TINY.theta, crops)
    for found in (load_variant(variant, data).embed(crops), with_exact_sums(data, crops)):
        unit = found / np.linalg.norm(found, axis=1, keepdims=True)
        # 0.9998 with sums that saturate, 0.99998 with exact ones; 0.976 or less with input of half the scale, twice
        # it, or in another order of colours.
        assert ((unit * expected).sum(1) > 0.998).all()
        assert not np.allclose(unit, expected, atol=1e-6)

    cost = variant.cost
    assert (cost.dataset, cost.num_people) == ("made up", 21)  # seven of the 28 calibrate
    assert cost.num_mated == 21 * 15
    assert cost.num_non_mated == 21 * 6 * 20 * 6 // 2
    assert cost.fmr == 0.01
    # 0.9986 with sums that saturate, 0.9991 with exact ones; 0.989 or less with input of another scale or order, 0.995
    # without the PReLU's slopes. The least is of one face beside a PReLU's bend, and another on every processor.
    assert cost.cosine_mean > 0.996
    assert 0.9 < cost.cosine_least <= cost.cosine_mean <= 1.0
    assert [each.model_id for each in variant.thresholds] == [variant.form_id]
    assert variant.thresholds[0].fmr <= 0.01
    assert variant.thresholds[0].date == "2026-01-02"
    assert "7 people of made up" in variant.calibration


def test_the_first_convolution_stays_in_float32_and_the_others_do_not(tmp_path: Path) -> None:
    made(tmp_path)
    model = onnx.load_from_string((tmp_path / "int8.variant").read_bytes())
    stored = {each.name: each.data_type for each in model.graph.initializer}
    quantised = [name for name, kind in stored.items() if kind == onnx.TensorProto.INT8 and "weight" in name]
    assert any("mix" in name for name in quantised)
    assert not any("stem" in name for name in quantised)


def test_a_variant_is_signed_with_its_model_and_no_other(tmp_path: Path) -> None:
    folder = folder_of(TINY, tmp_path / "model")
    variant = made(folder)
    signed = sign_folder(folder, KEY, sequence=1)
    assert {file.name for file in signed.variants} == {"int8.variant", "variants.json"}
    assert verify_folder(folder, bundles.name_of(KEY)) == signed
    (folder / "int8.variant").write_bytes(b"another")
    with pytest.raises(CorruptDataError, match=r"int8\.variant"):
        verify_folder(folder, bundles.name_of(KEY))
    with pytest.raises(CorruptDataError, match="not the signed file"):
        sign_folder(folder, KEY, sequence=2)

    later = dataclasses.replace(TINY, theta=TINY.theta * np.float32(1.5))
    other = folder_of(later, tmp_path / "later")
    (other / "int8.variant").write_bytes(b"x" * variant.size_bytes)
    (other / "variants.json").write_bytes(VariantList((variant,)).to_json())
    with pytest.raises(CorruptDataError, match="of another model"):
        sign_folder(other, KEY, sequence=3)


def test_too_few_faces_measure_nothing(tmp_path: Path) -> None:
    few = dataclasses.replace(FACES, crops=FACES.crops[: 19 * 6], labels=FACES.labels[: 19 * 6])
    with pytest.raises(ConfigError, match="shows 19 people"):
        made(tmp_path, few)
    one_each = dataclasses.replace(FACES, crops=FACES.crops[::6], labels=FACES.labels[::6])
    with pytest.raises(ConfigError, match="too few for a threshold"):
        made(tmp_path, one_each)
    assert not (tmp_path / "variants.json").exists()
    with pytest.raises(LayoutMismatchError):
        make_int8(TINY.spec, TINY.layout, TINY.theta, FACES, tmp_path, NOW, backbone=tiny_cnn(dim=4).backbone)


def test_faces_are_read_from_folders(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"person{number}").mkdir()
        for picture, crop in enumerate(made_up_crops(2, seed=number)):
            Image.fromarray(crop).save(tmp_path / f"person{number}" / f"{picture}.png")
    found = faces_in(tmp_path, TINY.spec.input, aligned=True)
    assert found.crops.shape == (4, 112, 112, 3)
    np.testing.assert_array_equal(found.labels, [0, 0, 1, 1])
    assert found.name == tmp_path.name
