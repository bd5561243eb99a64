"""Hard conditions: what each does to a crop, and that it does the same again."""

from __future__ import annotations

import numpy as np
import pytest

from simulation.faces.conditions import CONDITIONS, SIDE, in_condition
from tests.mien.backbones._models import pattern_crops

CROPS = pattern_crops(3)


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_changes_every_crop_and_the_same_way_again(name: str) -> None:
    before = CROPS.copy()
    found = in_condition(name, CROPS)
    assert found.shape == CROPS.shape
    assert found.dtype == np.uint8
    assert all((found[i] != CROPS[i]).any() for i in range(len(CROPS)))
    np.testing.assert_array_equal(found, in_condition(name, CROPS))
    np.testing.assert_array_equal(found[:2], in_condition(name, CROPS[:2]), "a crop's draws are its own")
    np.testing.assert_array_equal(CROPS, before)


def test_a_mask_leaves_the_eyes_and_covers_the_mouth() -> None:
    found = in_condition("masked", CROPS)
    np.testing.assert_array_equal(found[:, :50], CROPS[:, :50])
    mouth = found[0, 85:95, 45:65].astype(float)
    assert mouth.std(axis=(0, 1)).max() < 10, "cloth of one colour"


def test_14_pixels_hold_no_more_than_that() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1, SIDE, SIDE, 3)).astype(np.uint8)
    found = in_condition("small", noise).astype(float)
    spectrum = np.abs(np.fft.fft2(found[0, :, :, 0]))
    assert spectrum[20:-20, 20:-20].max() < 0.05 * np.sort(spectrum.reshape(-1))[-2]


def test_the_dark_is_noise_and_near_infrared_grey() -> None:
    flat = np.full((1, SIDE, SIDE, 3), 128, np.uint8)
    assert in_condition("dark", flat).std() > 10
    grey = in_condition("infrared", CROPS)
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])


def test_a_close_up_keeps_the_eyes_distance_and_enlarges_the_middle() -> None:
    """A ring at the eyes' distance from the centre stays near it; one well inside moves out."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    away = np.hypot(x, y)
    for radius, low, high in ((12.0, 12.5, 16.0), (40.0, 28.0, 39.5)):
        ring = np.repeat((255 * (np.abs(away - radius) < 1.5))[None, ..., None], 3, axis=3).astype(np.uint8)
        seen = in_condition("close_up", ring)[0, ..., 0].astype(float)
        assert low < (away * seen).sum() / seen.sum() < high
