"""Which way up a face is, told by a few looks at it.

YuNet finds faces that lie on their side or stand on their head too, puts the eyes where the mouth is, and is nearly as
sure of large ones as of upright ones; of faces that lean it marks half the lean. Neither landmarks nor the score of one
search tell. Seen at one small size, whatever the picture's, a face is surer upright than turned.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from device_sdk.faces.align import Square, roll_deg
from device_sdk.faces.detector import Face, FaceDetector
from device_sdk.faces.images import Pixels
from mien.errors import LowQualityError

# A look is at so many pixels around the face. The last is finer, for the landmarks.
_SIDE: Final = 96
_FINE_SIDE: Final = 320
# How much wider than the box of a face a look at it is.
_ROOM: Final = 1.6
# A face that was found so surely, and is seen so surely by a look straight at it, is upright. One upside down got 0.900
# in both, of two that were turned by every degree.
_SURE: Final = 0.91
_OTHER_TURNS: Final = range(45, 360, 45)
# How much surer the surest look has to be than any that disagrees.
_SURER: Final = 0.02
_AGREE_DEG: Final = 75.0
# A face that leans by less is taken as it was found, if it was found so.
_STRAIGHT_DEG: Final = 5.0
# A face that was set upright and leans by more was seen wrongly.
_REST_DEG: Final = 25.0


def set_upright(image: Pixels, face: Face, detector: FaceDetector) -> Face | None:
    """Return a face of an image (H, W, 3) uint8 RGB with landmarks that were found with its head up; None if unclear.

    Its box is as it was found. One look settles most upright faces; eight, an eighth of a turn apart, say about where
    up is of the rest.
    """
    try:
        first = roll_deg(face.landmarks)
        width = _ROOM * max(face.box[2:])
        straight = _look(Square(face.centre, width, _SIDE), image, detector)
        direction: float | None = straight[1]
        if min(face.score, straight[0]) < _SURE:
            around = Square(face.centre, 1.5 * width, _SIDE * 3 // 2).read(image)
            direction = _direction(straight, around, detector)
        if direction is None or (abs(direction) <= _STRAIGHT_DEG and abs(first) <= _REST_DEG):
            return None if direction is None else face
        square = Square(face.centre, 1.5 * width, _FINE_SIDE, direction)
        found = detector.search(square.read(image))
        if not found:
            return None
        nearest = min(found, key=lambda other: np.hypot(*np.subtract(other.centre, (_FINE_SIDE - 1) / 2)))
        if abs(roll_deg(nearest.landmarks)) > _REST_DEG:
            return None
        return Face(face.box, square.to_image(nearest.landmarks), nearest.score)
    except LowQualityError:  # landmarks in one point
        return None


def _direction(straight: tuple[float, float], around: Pixels, detector: FaceDetector) -> float | None:
    """Return about by how many degrees a face leans clockwise, as the surest look says; None where none is."""
    middle = (_SIDE * 3 // 2 - 1) / 2
    turned = (Square((middle, middle), _SIDE, _SIDE, turn) for turn in _OTHER_TURNS)
    looks = [straight, *(_look(square, around, detector) for square in turned)]
    score, direction = max(looks)
    rivals = (other for other, elsewhere in looks if abs(_wrapped(elsewhere - direction)) > _AGREE_DEG)
    return None if max(rivals, default=0.0) > score - _SURER or not score else _wrapped(direction)


def _look(square: Square, image: Pixels, detector: FaceDetector) -> tuple[float, float]:
    """Return the score of the face in a square and its lean in the image, clockwise in degrees; (0, 0) for none."""
    found = detector.search(square.read(image))
    return (found[0].score, square.turn_deg + roll_deg(found[0].landmarks)) if found else (0.0, 0.0)


def _wrapped(degrees: float) -> float:
    """Return an angle within half a turn of 0."""
    return (degrees + 180) % 360 - 180
