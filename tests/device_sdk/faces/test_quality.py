"""The quality gate: its components on constructed cases, its rates on photographs, renders and spoiled pictures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.faces import (
    ChoiceRule,
    Face,
    FaceDetector,
    FacePipeline,
    QualityPolicy,
    Reason,
    assess,
    choose_face,
    decode_image,
)
from device_sdk.faces.quality import _FRONTAL_FACE, Geometry, percentile
from mien.errors import ConfigError, LowQualityError, NoFaceError
from mien.records import from_mapping, to_mapping
from mien.specs import FaceInputSpec
from simulation.synthetic import committed_root, read_manifest
from simulation.synthetic.parameters import draw_image
from tests.device_sdk.faces.conftest import spread

Pixels = NDArray[np.uint8]
SHAPE = (400, 400, 3)


def rotated_face(
    yaw_deg: float = 0,
    pitch_deg: float = 0,
    roll_deg: float = 0,
    scale: float = 2.0,
    at: tuple[float, float] = (200, 200),
) -> Face:
    """Return a rigid head seen from far away: turned by yaw, then pitch, then roll, and drawn at `scale`.

    x to the right, y down, z towards the camera; yaw turns the nose right, pitch up, roll clockwise.
    """
    yaw, pitch, roll = (math.radians(angle) for angle in (yaw_deg, pitch_deg, roll_deg))
    turn_yaw = np.array([[math.cos(yaw), 0, math.sin(yaw)], [0, 1, 0], [-math.sin(yaw), 0, math.cos(yaw)]])
    turn_pitch = np.array([[1, 0, 0], [0, math.cos(pitch), -math.sin(pitch)], [0, math.sin(pitch), math.cos(pitch)]])
    turn_roll = np.array([[math.cos(roll), -math.sin(roll), 0], [math.sin(roll), math.cos(roll), 0], [0, 0, 1]])
    head = _FRONTAL_FACE - _FRONTAL_FACE.mean(axis=0)
    seen = scale * (head @ (turn_roll @ turn_pitch @ turn_yaw).T)[:, :2] + at
    x, y = seen.mean(axis=0)
    return Face((x - 45 * scale, y - 60 * scale, 90 * scale, 120 * scale), seen, 0.93)


def geometry(face: Face, shape: tuple[int, ...] = SHAPE) -> Geometry:
    found = assess(shape, face, np.full((112, 112, 3), 128, np.uint8), None).geometry
    assert found is not None
    return found


def crop_of(grey: NDArray[np.float64] | float) -> Pixels:
    plane = np.clip(np.rint(np.broadcast_to(grey, (112, 112))), 0, 255).astype(np.uint8)
    return np.repeat(plane[..., None], 3, axis=2)


def stripes(period: float, low: float = 60, high: float = 190) -> NDArray[np.float64]:
    """Waves across and down, of one period in pixels."""
    y, x = np.mgrid[:112, :112]
    wave = (np.sin(2 * np.pi * x / period) + np.sin(2 * np.pi * y / period)) / 4 + 0.5
    result: NDArray[np.float64] = low + (high - low) * wave
    return result


class TestPose:
    """Yaw, pitch, roll and size from five landmarks of a rigid head."""

    @pytest.mark.parametrize("yaw_deg", [-70, -30, 0, 30, 70])
    def test_yaw(self, yaw_deg: float) -> None:
        found = geometry(rotated_face(yaw_deg=yaw_deg))
        assert found.yaw_deg == pytest.approx(yaw_deg, abs=12)
        assert abs(found.pitch_deg) < 15

    @pytest.mark.parametrize("pitch_deg", [-40, -20, 0, 20, 40])
    def test_pitch(self, pitch_deg: float) -> None:
        found = geometry(rotated_face(pitch_deg=pitch_deg))
        assert found.pitch_deg == pytest.approx(pitch_deg, abs=8)
        assert found.yaw_deg == pytest.approx(0, abs=1e-6)

    @pytest.mark.parametrize("roll_deg", [-120, -45, 0, 45, 170])
    def test_roll(self, roll_deg: float) -> None:
        found = geometry(rotated_face(roll_deg=roll_deg))
        assert found.roll_deg == pytest.approx(roll_deg, abs=1e-6)
        assert abs(found.yaw_deg) < 1e-6
        assert abs(found.pitch_deg) < 1e-6

    def test_a_frontal_head_has_no_error_and_its_eye_distance(self) -> None:
        found = geometry(rotated_face(scale=2.0))
        assert found.landmark_error_px == pytest.approx(0, abs=1e-9)
        assert found.eye_distance_px == pytest.approx(2 * (74.89 - 37.15), rel=1e-9)

    def test_turning_the_head_does_not_make_it_small(self) -> None:
        """The eyes of a head turned by 50 degrees are 0.64 as far apart; its size is judged by all landmarks."""
        frontal, turned = (geometry(rotated_face(yaw_deg=yaw)).eye_distance_px for yaw in (0, 50))
        assert turned > 0.75 * frontal

    def test_landmarks_of_no_face(self) -> None:
        swapped = rotated_face()
        swapped = dataclasses.replace(swapped, landmarks=swapped.landmarks[[3, 4, 2, 0, 1]] * (1, -1) + (0, 400))
        scattered = dataclasses.replace(
            swapped, landmarks=np.array([(100, 100), (180, 160), (110, 220), (160, 100), (120, 130)], dtype=float)
        )
        mirrored = rotated_face()
        mirrored = dataclasses.replace(mirrored, landmarks=mirrored.landmarks * (-1, 1) + np.array((400, 0)))
        for face in (scattered, mirrored):
            assert Reason.LANDMARKS in geometry(face).reasons(QualityPolicy())

    def test_a_line_of_landmarks_is_no_face(self) -> None:
        line = np.linspace((100, 100), (200, 180), 5)
        found = geometry(dataclasses.replace(rotated_face(), landmarks=line))
        assert found.landmark_error_px > 2 or abs(found.yaw_deg) > 55 or abs(found.pitch_deg) > 30


class TestVisible:
    """How much of a face lies inside the image."""

    def test_inside_and_outside(self) -> None:
        assert geometry(rotated_face()).visible == 1.0
        assert geometry(rotated_face(at=(-2000, 200))).visible == 0.0

    @pytest.mark.parametrize("at", [(0, 200), (400, 200), (200, 0), (200, 400)])
    def test_half_a_face_at_each_edge(self, at: tuple[float, float]) -> None:
        found = geometry(rotated_face(at=at))
        assert 0.3 < found.visible < 0.6
        assert Reason.CUT_OFF in found.reasons(QualityPolicy())

    def test_box_drawn_inwards_does_not_hide_the_cut(self) -> None:
        face = rotated_face(at=(10, 200))
        assert geometry(dataclasses.replace(face, box=(0.0, 80.0, 130.0, 240.0))).visible < 0.6

    def test_empty_box(self) -> None:
        assert geometry(dataclasses.replace(rotated_face(), box=(200.0, 200.0, 0.0, 0.0))).visible == 0.0


class TestAppearance:
    """Sharpness and exposure of constructed crops."""

    def reasons(self, crop: Pixels) -> tuple[Reason, ...]:
        return assess(SHAPE, None, crop).reasons

    def test_exposure_by_hand(self) -> None:
        """A face of half 40, half 200, a tenth of it white."""
        grey = np.full((112, 112), 40.0)
        grey[:, 56:] = 200
        grey[28:36] = 255  # 8 of the 80 rows that count
        found = assess(SHAPE, None, crop_of(grey), None).appearance
        assert found.saturated == pytest.approx(0.1)
        assert found.highlight == 255
        # Shares 0.45, 0.45, 0.1 of 40, 200, 255: mean 133.5, mean square 25222.5.
        assert found.contrast == pytest.approx(math.sqrt(25222.5 - 133.5**2), rel=1e-4)

    @pytest.mark.parametrize("percent", [0, 5, 50, 95, 99.5, 100])
    def test_percentiles_are_numpys_to_the_last_bit(self, percent: float) -> None:
        rng = np.random.default_rng(0)
        for shape in [(1, 1), (1, 2), (3, 7), (80, 72), (79, 31)]:
            for values in (rng.integers(0, 256, shape), 100 * rng.standard_normal(shape)):
                found = percentile(values.astype(np.float32), percent)
                assert found == float(np.percentile(values.astype(np.float32), percent))

    def test_sharpness_falls_with_blur_and_ignores_light(self) -> None:
        sharp = np.kron(np.random.default_rng(0).choice((60.0, 190.0), (14, 14)), np.ones((8, 8)))
        found = [
            assess(SHAPE, None, crop_of(cv2.GaussianBlur(sharp, (0, 0), sigma) if sigma else sharp), None)
            for sigma in (0, 1, 2, 4)
        ]
        values = [quality.appearance.sharpness for quality in found]
        assert values == sorted(values, reverse=True)
        darker = assess(SHAPE, None, crop_of(sharp * 0.5), None).appearance.sharpness
        assert darker == pytest.approx(values[0], abs=0.02)

    @pytest.mark.parametrize("period", [6, 40])
    def test_sharpness_by_period(self, period: float) -> None:
        """A mean over 7 pixels takes 1 - |sinc(7/6)| = 0.86 of waves of 6 pixels, 1 - sinc(7/40) = 0.05 of 40."""
        expected = 1 - abs(np.sinc(7 / period))
        found = assess(SHAPE, None, crop_of(stripes(period)), None).appearance.sharpness
        assert found == pytest.approx(expected, abs=0.06)

    def test_each_reason_alone(self) -> None:
        assert self.reasons(crop_of(stripes(6))) == ()
        assert self.reasons(crop_of(stripes(6, 5, 38))) == (Reason.TOO_DARK,)
        assert self.reasons(crop_of(stripes(6, 120, 400))) == (Reason.TOO_BRIGHT,)
        assert self.reasons(crop_of(stripes(6, 120, 142))) == (Reason.LOW_CONTRAST,)
        assert self.reasons(crop_of(stripes(40))) == (Reason.BLURRED,)

    @pytest.mark.parametrize("level", [0, 128, 255])
    def test_flat_crops_are_refused_without_a_warning(self, level: int) -> None:
        assert {Reason.BLURRED, Reason.LOW_CONTRAST} <= set(self.reasons(crop_of(level)))

    def test_banding_is_not_sharpness(self) -> None:
        """A slow ramp, rounded, is steps of one grey level: nothing in it is sharp."""
        ramp = np.tile(np.linspace(100, 140, 112), (112, 1))
        assert assess(SHAPE, None, crop_of(ramp), None).appearance.sharpness == 0

    def test_dark_skin_well_lit_passes(self) -> None:
        """Most of the face at 30 of 255, its highlights at 60: dark, but lit."""
        grey = stripes(6, 20, 40)
        grey[30:50, 30:80] += 30
        assert Reason.TOO_DARK not in self.reasons(crop_of(grey))

    def test_narrow_crop(self) -> None:
        wide = crop_of(stripes(8))
        narrow = np.ascontiguousarray(wide[:, 8:104])
        assert assess(SHAPE, None, narrow, None).appearance == assess(SHAPE, None, wide, None).appearance


class TestPolicy:
    """QualityPolicy and the reasons."""

    @pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
    def test_values_are_checked(self, value: float) -> None:
        for field in dataclasses.fields(QualityPolicy):
            with pytest.raises(ConfigError, match=f"quality.{field.name}"):
                QualityPolicy(**{field.name: value})

    def test_is_plain_data(self) -> None:
        policy = QualityPolicy(max_yaw_deg=20.0)
        assert from_mapping(QualityPolicy, to_mapping(policy)) == policy

    def test_every_threshold_decides(self) -> None:
        """Each field, set to the value that nothing passes, adds its own reason and no other."""
        face, crop = rotated_face(yaw_deg=3, pitch_deg=3, roll_deg=3), crop_of(stripes(6, 60, 275))
        expected = {
            "min_score": (1.0, Reason.UNCLEAR),
            "min_eye_distance_px": (1e4, Reason.TOO_SMALL),
            "min_sharpness": (1.0, Reason.BLURRED),
            "min_highlight": (256.0, Reason.TOO_DARK),
            "max_saturated": (0.0, Reason.TOO_BRIGHT),
            "min_contrast": (256.0, Reason.LOW_CONTRAST),
            "max_yaw_deg": (0.0, Reason.TURNED),
            "max_pitch_deg": (0.0, Reason.PITCHED),
            "max_roll_deg": (0.0, Reason.ROLLED),
            "min_visible": (1.01, Reason.CUT_OFF),
            "max_landmark_error_px": (0.0, Reason.LANDMARKS),
        }
        assert set(expected) == {field.name for field in dataclasses.fields(QualityPolicy)}
        assert {reason for _, reason in expected.values()} == set(Reason)
        shifted = face.landmarks + np.array([(0.5, 0), (0, 0), (0, 0.5), (0, 0), (0, 0)])
        face = dataclasses.replace(face, landmarks=shifted)
        assert assess(SHAPE, face, crop).accepted
        for name, (value, reason) in expected.items():
            quality = assess(SHAPE, face, crop, QualityPolicy(**{name: value}))
            assert quality.reasons == (reason,)
            assert quality.hints == reason.hint

    def test_no_policy_rejects_nothing(self) -> None:
        quality = assess(SHAPE, rotated_face(yaw_deg=80), crop_of(0), None)
        assert quality.accepted

    def test_every_reason_has_its_own_hint(self) -> None:
        hints = [reason.hint for reason in Reason]
        assert len(set(hints)) == len(hints)
        assert all(hint.endswith(".") and hint[0].isupper() for hint in hints)


def accepted_share(pipeline: FacePipeline, images: list[Pixels]) -> float:
    accepted = 0
    for image in images:
        try:
            pipeline.acquire(image)
            accepted += 1
        except (LowQualityError, NoFaceError):
            pass
    return accepted / len(images)


def darkened(image: Pixels) -> Pixels:
    return np.rint(image * 0.12).astype(np.uint8)


def blurred(image: Pixels) -> Pixels:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), 3.5), np.uint8)


def shrunk(image: Pixels) -> Pixels:
    """The eyes of LFW's faces, and of the renders', come to about 15 pixels apart."""
    return np.asarray(cv2.resize(image, None, fx=0.36, fy=0.36, interpolation=cv2.INTER_AREA), np.uint8)


def faded(image: Pixels) -> Pixels:
    return np.rint(image * 0.1 + 170).astype(np.uint8)


@pytest.fixture(scope="module")
def centre(detector: FaceDetector) -> FacePipeline:
    return FacePipeline(FaceInputSpec(), choice=ChoiceRule.CENTRE, detector=detector)


class TestRates:
    """What the default policy lets through. Measured on whole sets: see docs/decisions on the quality gate."""

    def test_photographs_pass(self, centre: FacePipeline, lfw_files: list[Path]) -> None:
        assert accepted_share(centre, [decode_image(path) for path in spread(lfw_files, 120)]) >= 0.95

    def test_renders_pass(self, centre: FacePipeline, synthetic_files: list[Path]) -> None:
        assert accepted_share(centre, [decode_image(path) for path in spread(synthetic_files, 120)]) >= 0.92

    @pytest.mark.parametrize("spoil", [darkened, blurred, shrunk, faded])
    def test_spoiled_photographs_do_not(
        self, centre: FacePipeline, lfw_files: list[Path], spoil: Callable[[Pixels], Pixels]
    ) -> None:
        images = [spoil(decode_image(path)) for path in spread(lfw_files, 40)]
        assert accepted_share(centre, images) <= 0.125

    @pytest.mark.parametrize("spoil", [darkened, blurred, shrunk, faded])
    def test_spoiled_renders_do_not(
        self, centre: FacePipeline, synthetic_files: list[Path], spoil: Callable[[Pixels], Pixels]
    ) -> None:
        images = [spoil(decode_image(path)) for path in spread(synthetic_files, 40)]
        assert accepted_share(centre, images) <= 0.15


def test_yaw_of_renders_of_known_pose(detector: FaceDetector) -> None:
    """The committed renders' true angles are drawn from their seed; the estimate follows them."""
    root = committed_root()
    manifest = read_manifest(root)
    true, estimated = [], []
    for name, attempt in list(manifest.attempt_of_file.items())[::6]:
        _, person, picture = Path(name).with_suffix("").parts
        drawn = draw_image(manifest.seed, int(person.rsplit("_", 1)[1]), int(picture), attempt)
        image = decode_image(root / name)
        face = choose_face(detector.detect(image), image.shape, ChoiceRule.CENTRE)
        true.append(math.degrees(drawn.yaw_rad))
        estimated.append(geometry(face, image.shape).yaw_deg)
    assert len(true) == 100
    assert np.corrcoef(true, estimated)[0, 1] > 0.95
    assert np.abs(np.array(true) - estimated).mean() < 5
