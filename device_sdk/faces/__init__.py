"""From an image file or camera frame to an aligned crop: decode, detect, choose, align, assess.

Importing this package costs nothing before a name is used: settings know the limits of quality, and look at no picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mien._door import door

if TYPE_CHECKING:
    from device_sdk.faces.align import align_face
    from device_sdk.faces.detector import ChoiceRule, Face, FaceDetector, choose_face, load_detector
    from device_sdk.faces.images import Frame, ImageSource, decode_image, iter_image_files
    from device_sdk.faces.pipeline import AcquiredFace, FacePipeline
    from device_sdk.faces.quality import Appearance, Geometry, Quality, QualityPolicy, assess
    from device_sdk.faces.reasons import Reason

__all__ = [
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

_HOMES: Final = {
    "align_face": "align",
    **dict.fromkeys(("ChoiceRule", "Face", "FaceDetector", "choose_face", "load_detector"), "detector"),
    **dict.fromkeys(("Frame", "ImageSource", "decode_image", "iter_image_files"), "images"),
    **dict.fromkeys(("AcquiredFace", "FacePipeline"), "pipeline"),
    **dict.fromkeys(("Appearance", "Geometry", "Quality", "QualityPolicy", "assess"), "quality"),
    "Reason": "reasons",
}

__getattr__, __dir__ = door(__name__, _HOMES)
