"""A liveness check is asked before anybody is compared, and none is believed without a measured report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk import Device, Match, PadCheck, PresentationAttack
from device_sdk.faces import AcquiredFace, FacePipeline
from device_sdk.faces.crops import MASTER
from device_sdk.people.enroll import enroll
from device_sdk.people.gallery import Gallery
from device_sdk.people.recogniser import Recogniser, operating_point
from device_sdk.people.verify import Comparer
from mien.errors import ConfigError
from mien.evaluation.pad import PadReport, evaluate_pad
from tests.device_sdk.synthetic import OWNER, Engine, images_of, sface


@dataclass
class IsInColour:
    """Takes grey pictures for prints: a check that a test can foresee."""

    report: PadReport
    asked: list[tuple[int, ...]] = field(default_factory=list)

    def score(self, face: AcquiredFace) -> float:
        assert face.box is not None
        self.asked.append(face.image.shape)
        return float(np.ptp(face.crop.astype(int), axis=2).mean())


@pytest.fixture
def check() -> IsInColour:
    report = evaluate_pad([30, 40, 20], {"grey print": [0, 0.1]}, 5.0, detector="c", dataset="d", date="2026-01-01")
    return IsInColour(report)


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser(sface(), Engine(sface()))


def grey(path: Path) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.repeat(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)[..., None], 3, axis=2))


def test_an_attack_is_refused_before_anybody_is_compared(
    gallery: Gallery, recogniser: Recogniser, check: IsInColour
) -> None:
    pipeline, at = FacePipeline(MASTER), operating_point(recogniser.model)
    enroll("Owner", images_of(OWNER)[:4], gallery, recogniser, pipeline, now_unix_s=0, consent=False)
    living = images_of(OWNER)[5]
    for decide in (
        lambda image: Comparer(gallery, recogniser, pipeline, at, None, check).verify("Owner", image),
        lambda image: Comparer(gallery, recogniser, pipeline, at, None, check).identify(image),
    ):
        assert isinstance(decide(living), Match)
        refused = decide(grey(living))
        assert isinstance(refused, PresentationAttack)
        assert "living face" in refused.message
    assert isinstance(Comparer(gallery, recogniser, pipeline, at).verify("Owner", grey(living)), Match), (
        "without a check it passes"
    )
    assert len(check.asked) == 4


def test_a_score_that_is_no_number_does_not_pass(gallery: Gallery, recogniser: Recogniser, check: IsInColour) -> None:
    class Broken(IsInColour):
        def score(self, face: AcquiredFace) -> float:
            return float("nan")

    pipeline, at = FacePipeline(MASTER), operating_point(recogniser.model)
    enroll("Owner", images_of(OWNER)[:3], gallery, recogniser, pipeline, now_unix_s=0, consent=False)
    outcome = Comparer(gallery, recogniser, pipeline, at, None, Broken(check.report)).verify(
        "Owner", images_of(OWNER)[5]
    )
    assert isinstance(outcome, PresentationAttack)


def test_a_check_without_a_report_is_not_taken(tmp_path: Path, check: IsInColour) -> None:
    class Claims:
        report = "99.9 % accurate"

        def score(self, face: AcquiredFace) -> float:
            return 1.0

    with pytest.raises(ConfigError, match="no measured report"):
        Device.open(tmp_path / "phone", options={"keystore": "file"}, pad=Claims())  # type: ignore[arg-type]
    pad: PadCheck = check
    with Device.open(tmp_path / "phone", options={"keystore": "file"}, pad=pad) as device:
        said = device.status().liveness_check
        assert said is not None
        assert "APCER" in said
    with Device.open(tmp_path / "phone") as device:
        assert device.status().liveness_check is None
