"""The one way from an image to an aligned crop: decode, detect, choose, align, assess."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import numpy as np

from device_sdk.faces.align import align_face
from device_sdk.faces.detector import ChoiceRule, FaceDetector, choose_face, load_detector
from device_sdk.faces.images import ImageSource, Pixels, display_name, name_of, pixels_of
from device_sdk.faces.quality import DEFAULT_POLICY, Quality, QualityPolicy, assess
from device_sdk.faces.reasons import Reason
from device_sdk.faces.upright import set_upright
from mien.errors import ConfigError, ImageError, LowQualityError, MultipleFacesError, NoFaceError
from mien.specs import FaceInputSpec


@dataclass(frozen=True, eq=False)
class AcquiredFace:
    """An aligned crop (H, W, 3) uint8 RGB, ready for `FaceInputSpec.network_input`, and how it was come by.

    `image` (H, W, 3) is the whole picture. `box` (x, y, width, height) is None and `num_faces` is 1 for a crop that
    came aligned. `num_faces` counts every face found, so that an evaluation can say how often a choice was made.
    """

    image: Pixels = field(repr=False)
    crop: Pixels = field(repr=False)
    quality: Quality
    box: tuple[float, float, float, float] | None
    num_faces: int


class FacePipeline:
    """Acquires faces for one recogniser: same steps for enrolment, verification, evaluation and benchmarks.

    `policy` None measures quality, rejects nothing and takes every face for upright. `aligned` says that the images are
    crops of the spec's size already, so that nothing is detected; it is never guessed. Enrolment wants the defaults;
    evaluation on a data set wants `choice=ChoiceRule.CENTRE` and `policy=None`, and counts NoFaceError as failure to
    enrol.
    """

    def __init__(
        self,
        spec: FaceInputSpec,
        policy: QualityPolicy | None = DEFAULT_POLICY,
        choice: ChoiceRule = ChoiceRule.ONLY,
        *,
        aligned: bool = False,
        detector: FaceDetector | None = None,
    ) -> None:
        self.spec = spec
        self.policy = policy
        self.choice = choice
        self._detector = None if aligned else detector or load_detector()

    def acquire_source(self, image: ImageSource) -> AcquiredFace:
        """Return the face in a picture, however it is given; errors as `pixels_of` and `acquire`, naming the file."""
        return self.acquire(pixels_of(image), name=name_of(image))

    def acquire_file(self, path: str | os.PathLike[str]) -> AcquiredFace:
        """Return the face in an image file; errors are those of `decode_image` and `acquire`, naming the file."""
        return self.acquire_source(path)

    def acquire(self, image: Pixels, *, name: str | None = None) -> AcquiredFace:
        """Return the face in an image (H, W, 3) uint8 RGB; `name` is how errors call the image.

        Raises NoFaceError, MultipleFacesError (under `ChoiceRule.ONLY`), LowQualityError with the policy's reasons,
        and ImageError where aligned crops are expected and the image has another size.
        """
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ConfigError(f"image has shape {image.shape} {image.dtype}; give (height, width, 3) uint8 RGB")
        prefix = "" if name is None else f"{display_name(name)}: "
        try:
            acquired = self._take_aligned(image) if self._detector is None else self._find(image, self._detector)
        except (ImageError, NoFaceError, MultipleFacesError) as error:
            raise type(error)(prefix + error.message) from None
        except LowQualityError as error:
            raise LowQualityError(prefix + error.message, reasons=error.reasons) from None
        if not acquired.quality.accepted:
            raise LowQualityError(prefix + acquired.quality.hints, reasons=acquired.quality.reasons)
        return acquired

    def _find(self, image: Pixels, detector: FaceDetector) -> AcquiredFace:
        faces = detector.detect(image)
        if self.policy is not None and not faces:
            faces = detector.search_turned(image)
        face = choose_face(faces, image.shape, self.choice)
        upright = face if self.policy is None else set_upright(image, face, detector)
        face = upright or face
        crop = align_face(image, face.landmarks, self.spec)
        quality = assess(image.shape, face, crop, self.policy)
        if upright is None:
            quality = replace(quality, reasons=tuple(dict.fromkeys((Reason.ROLLED, *quality.reasons))))
        return AcquiredFace(image, crop, quality, face.box, len(faces))

    def _take_aligned(self, image: Pixels) -> AcquiredFace:
        height, width = image.shape[:2]
        if (width, height) != (self.spec.width, self.spec.height):
            raise ImageError(
                f"the image is {width}x{height}, an aligned crop is {self.spec.width}x{self.spec.height}; "
                "leave out the option for aligned crops"
            )
        return AcquiredFace(image, image, assess(image.shape, None, image, self.policy), None, 1)
