"""Which way up a face is: whatever its size and however it is turned, it is set upright or refused."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, Face, FaceDetector, FacePipeline, choose_face, decode_image
from device_sdk.faces.align import Square, roll_deg
from device_sdk.faces.images import Pixels
from device_sdk.faces.upright import set_upright
from mien.errors import LowQualityError, MienError
from mien.specs import FaceInputSpec
from tests.device_sdk.faces.conftest import spread

pytestmark = pytest.mark.numerics

SPEC = FaceInputSpec()


def grown(image: Pixels, side: int) -> Pixels:
    return np.asarray(cv2.resize(image, (side, side), interpolation=cv2.INTER_CUBIC), np.uint8)


def leaning(image: Pixels, degrees: float) -> Pixels:
    """Return a picture turned clockwise about its middle."""
    middle = ((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, -degrees, 0.8)
    return np.asarray(cv2.warpAffine(image, matrix, image.shape[1::-1], borderMode=cv2.BORDER_REFLECT), np.uint8)


def off(roll: float, expected: float) -> float:
    """Return how far an angle is from another, -180..180 degrees."""
    return (roll - expected + 180) % 360 - 180


def alike(crop: Pixels, other: Pixels) -> float:
    return float(np.corrcoef(crop.mean(2).ravel(), other.mean(2).ravel())[0, 1])


def is_upright(crop: Pixels, expected: Pixels) -> bool:
    """Return whether a crop is nearer to the expected one as it is than turned by quarters."""
    return max(range(4), key=lambda quarters: alike(np.rot90(crop, quarters), expected)) == 0


@pytest.fixture(scope="module")
def good(pipeline: FacePipeline, synthetic_files: list[Path]) -> list[Pixels]:
    """Pictures that pass."""
    found = []
    for path in spread(synthetic_files, 12):
        try:
            pipeline.acquire_file(path)
        except LowQualityError:
            continue
        found.append(decode_image(path))
    assert len(found) >= 9
    return found


@pytest.mark.parametrize("quarters", [1, 2, 3])
@pytest.mark.parametrize("side", [150, 224, 600])
def test_pictures_on_their_side_or_head_give_the_crop_of_the_upright_one(
    pipeline: FacePipeline, good: list[Pixels], quarters: int, side: int
) -> None:
    taken = 0
    for image in good:
        try:
            found = pipeline.acquire(np.ascontiguousarray(np.rot90(grown(image, side), quarters)))
        except MienError:
            continue
        taken += 1
        assert found.quality.geometry is not None
        assert abs(off(found.quality.geometry.roll_deg, -90 * quarters)) < 30
    assert taken >= len(good) - 3


@pytest.mark.parametrize("degrees", [-150, -100, -60, -30, 20, 45, 75, 120, 165])
def test_a_leaning_face_is_set_upright(pipeline: FacePipeline, good: list[Pixels], degrees: int) -> None:
    seen = []
    for image in good:
        try:
            found = pipeline.acquire(leaning(grown(image, 300), degrees))
        except MienError:
            continue
        assert found.quality.geometry is not None
        seen.append(abs(off(found.quality.geometry.roll_deg, degrees)))
    assert len(seen) >= len(good) // 2
    assert np.median(seen) < 15
    assert max(seen) < 35


def test_upside_down_photographs_of_selfie_size_match_nobody_else(
    pipeline: FacePipeline, lfw_files: list[Path]
) -> None:
    """They passed with the eyes where the mouth is, and such crops of different people match one another."""
    central = FacePipeline(SPEC, choice=ChoiceRule.CENTRE, detector=pipeline._detector)
    taken = 0
    for path in spread(lfw_files, 30):
        image = grown(decode_image(path), 600)
        try:
            upright = central.acquire(image).crop
            turned = central.acquire(np.ascontiguousarray(image[::-1, ::-1])).crop
        except MienError:
            continue
        taken += 1
        assert is_upright(turned, upright)
    assert taken >= 20


def test_an_upright_face_is_taken_as_it_was_found(detector: FaceDetector, good: list[Pixels]) -> None:
    same = 0
    for image in good:
        face = choose_face(detector.detect(image), image.shape, ChoiceRule.CENTRE)
        same += set_upright(image, face, detector) is face
    assert same >= len(good) // 2


class CountingDetector(FaceDetector):
    """Counts how often it searches."""

    def __init__(self, detector: FaceDetector) -> None:
        self.detector = detector
        self.searched = 0

    def search(self, image: Pixels, times: int = 1) -> tuple[Face, ...]:
        self.searched += 1
        return self.detector.search(image, times)


def test_one_look_settles_upright_faces_alone(detector: FaceDetector, good: list[Pixels]) -> None:
    searched: dict[int, list[int]] = {0: [], 1: [], 2: [], 3: []}
    for image in good:
        for quarters, counts in searched.items():
            turned = np.ascontiguousarray(np.rot90(image, quarters))
            counting = CountingDetector(detector)
            for face in detector.detect(turned)[:1]:
                set_upright(turned, face, counting)
                counts.append(counting.searched)
    assert searched[0].count(1) >= len(good) // 3
    assert all(min(searched[quarters]) >= 8 for quarters in (1, 2, 3))


def test_what_shows_no_face_has_no_way_up(detector: FaceDetector) -> None:
    wall = np.full((200, 200, 3), 120, np.uint8)
    points = np.array(((80.0, 80), (120, 80), (100, 100), (85, 120), (115, 120)))
    assert set_upright(wall, Face((60.0, 60.0, 80.0, 80.0), points, 0.9), detector) is None
    assert set_upright(wall, Face((60.0, 60.0, 80.0, 80.0), np.ones((5, 2)), 0.9), detector) is None
    assert set_upright(wall, Face((60.0, 60.0, 0.0, 0.0), points, 0.9), detector) is None


def test_a_square_stands_upright_what_leans_in_the_image() -> None:
    image = np.zeros((60, 80, 3), np.uint8)
    image[20, 50] = 255  # 10 above the middle at (50, 30)
    for turn, (x, y) in {0: (10, 0), 90: (0, 10), 180: (10, 20), 270: (20, 10)}.items():
        square = Square((50.0, 30.0), 21.0, 21, turn)
        seen = square.read(image)
        assert np.argwhere(seen[..., 0] > 200).tolist() == [[y, x]]
        np.testing.assert_allclose(square.to_image(np.array([[x, y]], np.float64)), [[50, 20]], atol=1e-9)
    with pytest.raises(LowQualityError):
        Square((50.0, 30.0), 0.0, 21).read(image)


@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_a_face_of_a_turned_image_lies_where_it_was(quarters: int) -> None:
    image = np.zeros((30, 50), np.uint8)
    image[7, 11], image[12, 20] = 1, 2
    turned = np.rot90(image, quarters)
    one, other = (np.argwhere(turned == value)[0][::-1].astype(float) for value in (1, 2))
    low, high = np.minimum(one, other), np.maximum(one, other)
    points: NDArray[np.float64] = np.stack([one, other, one, other, one])
    face = Face((*low, *(high - low)), points, 0.9).turned_back(quarters, *image.shape)
    assert face.box == (11, 7, 9, 5)
    np.testing.assert_array_equal(face.landmarks[:2], [[11, 7], [20, 12]])


def test_roll_is_clockwise() -> None:
    points = SPEC.template - 56
    turn = np.radians(30)
    rotated = points @ np.array(((np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))))
    assert roll_deg(rotated + 100) == pytest.approx(30)
