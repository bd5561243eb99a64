"""Imported recognisers against other runtimes on the public files: ONNX Runtime for SFace, LiteRT for MobileFaceNet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mien.backbones import Backbone
from mien.backbones.importers import import_mobilefacenet192, import_sface
from mien.models.known_models import MOBILEFACENET192, SFACE, recognise
from tests.golden._reference_sface import dequantised, embed
from tests.mien.backbones._models import mobilefacenet_file, pattern_crops, real_crops, wheel_model

pytestmark = pytest.mark.numerics

LITERT = Path(__file__).with_name("mobilefacenet192_litert.json")


def torch_embed(backbone: Backbone, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    with torch.no_grad():
        return np.asarray(backbone(torch.from_numpy(backbone.input_spec.network_input(crops))))


def test_sface_equals_onnxruntime_on_patterns() -> None:
    data = wheel_model(SFACE.filename)
    backbone, _ = import_sface(data)
    crops = pattern_crops(3)
    np.testing.assert_allclose(torch_embed(backbone, crops), embed(dequantised(data), crops), rtol=0, atol=1e-4)


def test_sface_equals_onnxruntime_on_faces() -> None:
    crops = real_crops(8)
    data = wheel_model(SFACE.filename)
    backbone, _ = import_sface(data)
    ours, theirs = torch_embed(backbone, crops), embed(dequantised(data), crops)
    worst = float(np.abs(ours - theirs).max())  # a number, never the embeddings: a failing assert would print them
    assert worst <= 1e-4
    assert float(np.abs(theirs).max()) > 1.0, "the reference embeds to nothing"


def test_sface_imports_the_float32_form_to_the_same_numbers() -> None:
    data = wheel_model(SFACE.filename)
    assert np.array_equal(import_sface(data)[1], import_sface(dequantised(data))[1])


def test_mobilefacenet192_equals_litert() -> None:
    golden = json.loads(LITERT.read_text(encoding="utf-8"))
    data = mobilefacenet_file()
    assert recognise(data) == MOBILEFACENET192, "MIEN_MOBILEFACENET names another file"
    assert golden["sha256"] == MOBILEFACENET192.sha256
    backbone, _ = import_mobilefacenet192(data)
    ours = torch_embed(backbone, pattern_crops(2))
    np.testing.assert_allclose(ours, np.array(golden["embeddings"]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["face_detection_yunet_2023mar_int8bq.onnx", SFACE.filename])
def test_the_wheel_holds_the_known_files(name: str) -> None:
    known = recognise(wheel_model(name))
    assert known is not None
    assert known.filename == name
    assert known.size_bytes == len(wheel_model(name))
