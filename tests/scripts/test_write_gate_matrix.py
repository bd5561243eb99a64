"""The page on the quality gate: pictures are turned and sized as its tables say, and cells count what happened."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.faces import FacePipeline
from device_sdk.faces.crops import MASTER
from scripts.write_gate_matrix import PAGE, ROTATIONS, SIZES, Subject, _spread_below, cell, lean, outcome, picture

NOSE = (60.0, 40.0)


def marked() -> Subject:
    """Return a face 20 pixels wide with a mark 10 pixels above its middle."""
    image = np.zeros((90, 120, 3), np.uint8)
    image[29:32, 59:62] = 255
    return Subject(image, NOSE, 20.0, np.zeros((5, 2)), image)


@pytest.mark.parametrize(("degrees", "to"), [(0, (0, -20)), (90, (20, 0)), (180, (0, 20)), (270, (-20, 0))])
def test_a_picture_has_its_face_in_the_middle_turned_clockwise(degrees: int, to: tuple[int, int]) -> None:
    drawn = picture(marked().image, marked(), 40, degrees, 2.6)
    assert drawn.shape == (104, 104, 3)
    y, x = np.argwhere(drawn[..., 0] > 127).mean(axis=0)
    assert (x - 51.5, y - 51.5) == pytest.approx(to, abs=0.6)


def test_a_picture_without_a_face_says_so() -> None:
    assert lean(FacePipeline(MASTER), np.full((64, 64, 3), 90, np.uint8), 0.0) == "no_face"


def test_a_cell_counts_what_passed_and_then_why_the_rest_did_not() -> None:
    assert [outcome(found) for found in (3.0, 45.5, "rolled")] == ["passed", "wrong", "rolled"]
    assert cell(["rolled", "passed", "blurred", "rolled"]) == "1, 2 rolled, 1 blurred"


def test_the_page_has_every_size_and_rotation() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith(f"| {size} |") for size in SIZES for line in lines) == 2 * len(SIZES) - 1
    assert "| face, pixels | " + " | ".join(f"{degrees}°" for degrees in ROTATIONS) + " |" in lines


def test_a_covered_mouth_varies_less_than_the_eyes() -> None:
    crop = np.random.default_rng(0).integers(0, 256, (112, 112, 3)).astype(np.uint8)
    covered = crop.copy()
    covered[60:] = 90
    assert _spread_below(covered) == 0.0 < 0.8 < _spread_below(crop) < 1.2
