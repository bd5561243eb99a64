"""The similarity against hand-computed and constructed cases, the crop against the definition of bilinear reading."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from device_sdk.faces import align_face
from device_sdk.faces.align import similarity
from mien.errors import LowQualityError
from mien.specs import FaceInputSpec

pytestmark = pytest.mark.numerics

SPEC = FaceInputSpec()


def smooth_picture(height: int, width: int) -> NDArray[np.uint8]:
    """A picture of slow waves, so that half a pixel matters little, in three different colours."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + phase) * np.cos(y / 23 - phase) for phase in (0.0, 1.0, 2.0)]
    return np.rint(127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)


def turned(points: NDArray[np.float64], scale: float, angle: float, shift: tuple[float, float]) -> NDArray[np.float64]:
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    result: NDArray[np.float64] = scale * points @ rotation.T + shift
    return result


class TestSimilarity:
    """similarity."""

    def test_umeyamas_own_example(self) -> None:
        """Section III of the paper: three points that only a reflection would fit; published R, t, c to 3 digits."""
        source = np.array([(0.0, 0.0), (1.0, 0.0), (0.0, 2.0)])
        target = np.array([(0.0, 0.0), (-1.0, 0.0), (0.0, 2.0)])
        matrix = similarity(source, target)
        scale = np.hypot(*matrix[:, 0])
        assert scale == pytest.approx(0.721, abs=5e-4)
        np.testing.assert_allclose(matrix[:, :2] / scale, [[0.832, 0.555], [-0.555, 0.832]], atol=5e-4)
        np.testing.assert_allclose(matrix[:, 2], [-0.800, 0.400], atol=5e-4)

    def test_by_hand(self) -> None:
        """A quarter turn, twice the size, then right by 1 and down by 2: (x, y) -> (1 - 2y, 2 + 2x)."""
        source = np.array([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
        target = np.array([(1.0, 2.0), (1.0, 4.0), (-1.0, 2.0)])
        np.testing.assert_allclose(similarity(source, target), [[0, -2, 1], [2, 0, 2]], atol=1e-12)

    @given(
        scale=st.floats(0.05, 20), angle=st.floats(-np.pi, np.pi), x=st.floats(-1000, 1000), y=st.floats(-1000, 1000)
    )
    def test_recovers_what_was_done(self, scale: float, angle: float, x: float, y: float) -> None:
        moved = turned(SPEC.template, scale, angle, (x, y))
        matrix = similarity(moved, SPEC.template)
        np.testing.assert_allclose(moved @ matrix[:, :2].T + matrix[:, 2], SPEC.template, atol=1e-6)

    def test_no_small_change_does_better(self) -> None:
        rng = np.random.default_rng(3)
        source = SPEC.template + rng.normal(0, 6, (5, 2))
        best = similarity(source, SPEC.template)

        def loss(a: float, b: float, shift: NDArray[np.float64]) -> float:
            return float(((source @ np.array([[a, -b], [b, a]]).T + shift - SPEC.template) ** 2).sum())

        a, b, shift = best[0, 0], best[1, 0], best[:, 2]
        for change in rng.normal(0, 1e-3, (200, 4)):
            assert loss(a, b, shift) <= loss(a + change[0], b + change[1], shift + change[2:])

    def test_is_never_a_reflection(self) -> None:
        mirrored = SPEC.template * (-1, 1)
        assert np.linalg.det(similarity(mirrored, SPEC.template)[:, :2]) > 0

    @pytest.mark.parametrize(
        "points",
        [
            np.full((5, 2), 7.0),
            np.full((5, 2), np.nan),
            np.array([(0, 0), (np.inf, 0), (0, 1), (1, 1), (2, 2)], dtype=float),
            7 + 0.01 * np.arange(10).reshape(5, 2),
        ],
        ids=["one spot", "nan", "infinity", "almost one spot"],
    )
    def test_degenerate_landmarks(self, points: NDArray[np.float64]) -> None:
        with np.errstate(invalid="ignore"), pytest.raises(LowQualityError, match="no direction") as raised:
            similarity(points, SPEC.template)
        assert raised.value.reasons == ("landmarks",)


class TestCrop:
    """align_face."""

    def test_landmarks_at_the_template_copy_the_image(self) -> None:
        image = smooth_picture(112, 112)
        np.testing.assert_array_equal(align_face(image, SPEC.template, SPEC), image)

    def test_whole_shift_copies_and_outside_is_black(self) -> None:
        image = smooth_picture(112, 112)
        crop = align_face(image, SPEC.template + np.array((10, -5)), SPEC)
        np.testing.assert_array_equal(crop[5:, :102], image[:107, 10:])
        assert (crop[:5] == 0).all()
        assert (crop[:, 102:] == 0).all()

    def test_narrow_crop_is_the_middle_of_the_wide_one(self) -> None:
        image = smooth_picture(250, 250)
        landmarks = turned(SPEC.template, 1.3, 0.2, (60, 40))
        narrow = align_face(image, landmarks, FaceInputSpec(width=96))
        assert narrow.shape == (112, 96, 3)
        wide = align_face(image, landmarks, SPEC)
        assert np.abs(narrow.astype(int) - wide[:, 8:104]).max() <= 1

    @pytest.mark.parametrize(("scale", "angle"), [(0.6, 0.0), (1.3, 0.4), (1.9, -0.7)])
    def test_every_pixel_is_read_bilinearly(self, scale: float, angle: float) -> None:
        """Crop pixel p shows the image at M^-1 p, a weighted mean of the four pixels around it."""
        image = smooth_picture(400, 420)
        landmarks = turned(SPEC.template, scale, angle, (100, 160))
        matrix = similarity(landmarks, SPEC.template)
        y, x = np.mgrid[:112, :112]
        at = (np.stack((x, y), axis=-1) - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T
        corner = np.floor(at).astype(int)
        expected = np.zeros((112, 112, 3))
        for down in (0, 1):
            for right in (0, 1):
                weight = np.abs(1 - right - (at - corner)[..., 0]) * np.abs(1 - down - (at - corner)[..., 1])
                pixel = image[corner[..., 1] + down, corner[..., 0] + right]
                expected += weight[..., None] * pixel
        crop = align_face(image, landmarks, SPEC)
        assert np.abs(crop - expected).max() <= 1

    @pytest.mark.parametrize("scale", [2.5, 5.0, 9.0])
    def test_large_face_is_averaged_not_sampled(self, scale: float) -> None:
        """A grey face under noise of 40 levels: bilinear reading would leave over half of the noise."""
        rng = np.random.default_rng(4)
        noise = 128 + rng.normal(0, 40, (round(112 * scale) + 40, round(112 * scale) + 40, 3))
        image = np.clip(np.rint(noise), 0, 255).astype(np.uint8)
        crop = align_face(image, turned(SPEC.template, scale, 0.0, (20, 20)), SPEC)
        assert crop.std() < 40 / int(scale)

    @pytest.mark.parametrize("scale", [2, 4])
    def test_averaging_does_not_shift(self, scale: int) -> None:
        """Enlarged by a whole factor, pixel x becomes pixels scale*x .. scale*x + scale - 1: the crop is the same."""
        image = smooth_picture(200, 210)
        landmarks = turned(SPEC.template, 1.2, 0.1, (30, 25))
        large = image.repeat(scale, axis=0).repeat(scale, axis=1)
        crop = align_face(large, landmarks * scale + (scale - 1) / 2, SPEC)
        assert np.abs(crop.astype(int) - align_face(image, landmarks, SPEC)).max() <= 3

    @pytest.mark.parametrize("shape", [(1, 1), (3, 2000), (20, 20)])
    def test_landmarks_far_outside_a_small_image(self, shape: tuple[int, int]) -> None:
        image = np.full((*shape, 3), 200, np.uint8)
        crop = align_face(image, turned(SPEC.template, 30.0, 0.3, (-500, 900)), SPEC)
        assert crop.shape == (112, 112, 3)
