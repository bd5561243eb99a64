"""Our alignment against OpenCV's own, `FaceRecognizerSF.alignCrop`: at most one grey level apart."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.faces import align_face
from mien.specs import FaceInputSpec

pytestmark = pytest.mark.numerics

onnx = pytest.importorskip("onnx", reason="the stand-in model is written with onnx, of the extra [train]")
SPEC = FaceInputSpec()


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> cv2.FaceRecognizerSF:
    """OpenCV's recogniser on a stand-in network: alignCrop needs an instance, not its network."""
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["data"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weight"], ["embedding"]),
        ],
        "stand-in",
        [helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, [1, 3, 112, 112])],
        [helper.make_tensor_value_info("embedding", onnx.TensorProto.FLOAT, [1, 2])],
        [onnx.numpy_helper.from_array(np.ones((3 * 112 * 112, 2), np.float32), "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    path: Path = tmp_path_factory.mktemp("model") / "stand-in.onnx"
    path.write_bytes(model.SerializeToString())
    return cv2.FaceRecognizerSF.create(str(path), "")


def opencv_crop(
    recogniser: cv2.FaceRecognizerSF, image: NDArray[np.uint8], landmarks: NDArray[np.float64]
) -> NDArray[np.uint8]:
    # alignCrop checks nothing: the row must be float32 and whole. It works on BGR as on any three channels.
    row = np.zeros((1, 15), np.float32)
    row[0, 4:14] = landmarks.ravel()
    bgr = np.ascontiguousarray(image[..., ::-1])
    return np.asarray(recogniser.alignCrop(bgr, row), np.uint8)[..., ::-1]


@pytest.mark.parametrize("seed", range(12))
def test_equals_opencv_to_one_grey_level(recogniser: cv2.FaceRecognizerSF, seed: int) -> None:
    """Faces of up to twice the crop's size, turned by up to 40 degrees, with landmarks off the template; noise."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (300, 330, 3), dtype=np.uint8)
    scale, angle = rng.uniform(0.5, 1.9), rng.uniform(-0.7, 0.7)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    landmarks = scale * (SPEC.template + rng.normal(0, 3, (5, 2))) @ rotation.T + rng.uniform(20, 120, 2)
    landmarks = landmarks.astype(np.float32).astype(np.float64)
    ours = align_face(image, landmarks, SPEC)
    theirs = opencv_crop(recogniser, image, landmarks)
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.2


def test_the_colours_are_not_swapped(recogniser: cv2.FaceRecognizerSF) -> None:
    image = np.zeros((150, 150, 3), np.uint8)
    image[..., 0] = 200
    landmarks = SPEC.template + np.array((10, 12))
    assert (align_face(image, landmarks, SPEC)[..., 0] == 200).all()
    np.testing.assert_array_equal(opencv_crop(recogniser, image, landmarks), align_face(image, landmarks, SPEC))
