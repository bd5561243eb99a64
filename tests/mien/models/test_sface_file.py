"""SFace's numbers without torch: the same model as the importer gives, which the golden tests hold to its source."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from mien.backbones.importers import import_model, with_adapter
from mien.layout import model_id
from mien.models.known_models import SFACE
from mien.models.sface_file import DEFAULT_TRAINABLE, read_known_sface, read_sface
from tests.mien.backbones._models import wheel_model

MODEL_ID = "a3658942fbd57206aae6d741fc2192372b956e2b2978e7fad327cd0c887b2736"
"""On every processor: templates and thresholds are named after it."""


def test_it_is_the_model_that_the_importer_gives() -> None:
    layout, theta = read_sface(wheel_model(SFACE.filename))
    imported = import_model(wheel_model(SFACE.filename), SFACE.filename)
    assert layout.sha256 == imported.layout.sha256
    np.testing.assert_array_equal(theta, imported.theta)
    assert model_id(layout.sha256, theta) == MODEL_ID
    assert imported.spec.trainable == DEFAULT_TRAINABLE


def test_with_an_adapter_it_is_the_importers_too() -> None:
    spec, layout, theta = read_known_sface(wheel_model(SFACE.filename), SFACE, adapter=True)
    imported = with_adapter(import_model(wheel_model(SFACE.filename), SFACE.filename))
    assert (spec, layout) == (imported.spec, imported.layout)
    np.testing.assert_array_equal(theta, imported.theta)


def test_it_takes_neither_torch_nor_onnx() -> None:
    code = "import sys, mien.models.sface_file; print(*{'torch', 'onnx', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
