"""Thresholds out of an evaluation's record, and shares as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coordinator.commands.models import percent, share_of
from coordinator.thresholds import thresholds_of
from mien.errors import ConfigError

MODEL = "a" * 64
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_measured_points_become_thresholds_with_provenance() -> None:
    point = {"threshold": 0.31, "fmr": 0.0009, "num_mated": 50, "num_non_mated": 40_000, "target_fmr": 0.001}
    record = {
        "dataset": "faces",
        "model_id": MODEL,
        "points": [
            point,
            {"target_fmr": 1e-6, "not_measurable": "too few"},
            {**point, "threshold": 1.5},
            {**point, "target_fmr": 0.0001},  # 4 errors are expected: one that happened to be seen proves little
        ],
    }
    (threshold,) = thresholds_of(record, NOW)
    assert (threshold.value, threshold.fmr, threshold.dataset) == (0.31, 0.0009, "faces")
    assert (threshold.num_mated, threshold.num_non_mated, threshold.model_id) == (50, 40_000, MODEL)
    assert threshold.date == "2026-01-02"


def test_a_record_without_points_gives_none() -> None:
    assert thresholds_of({"dataset": "LFW View 2", "model_id": MODEL, "accuracy": 0.99}, NOW) == []


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("0.1", 0.1), ("100%", 1.0), ("1", 1.0), ("0.5%", 0.005)])
def test_shares(text: str, share: float) -> None:
    assert share_of(text) == pytest.approx(share)
    assert share_of(percent(share)) == pytest.approx(share)


def test_shares_are_said_as_they_are_written() -> None:
    assert [percent(share) for share in (0.1, 1.0, 0.005)] == ["10%", "100%", "0.5%"]


@pytest.mark.parametrize("text", ["", "10", "0%", "101%", "-5%", "all", "nan"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 10%"):
        share_of(text)
