"""From an image file or camera frame to an aligned crop: decode, detect, choose, align, assess."""

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
