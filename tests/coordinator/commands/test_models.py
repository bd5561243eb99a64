"""Thresholds out of an evaluation's record."""

from __future__ import annotations

from coordinator.commands.models import thresholds_of

MODEL = "a" * 64


def test_measured_points_become_thresholds_with_provenance() -> None:
    point = {"threshold": 0.31, "fmr": 0.001, "num_mated": 50, "num_non_mated": 40_000, "target_fmr": 0.001}
    record = {
        "dataset": "faces",
        "model_id": MODEL,
        "points": [point, {"target_fmr": 1e-6, "not_measurable": "too few"}, {**point, "threshold": 1.5}],
    }
    (threshold,) = thresholds_of(record)
    assert (threshold.value, threshold.fmr, threshold.dataset) == (0.31, 0.001, "faces")
    assert (threshold.num_mated, threshold.num_non_mated, threshold.model_id) == (50, 40_000, MODEL)
    assert len(threshold.date) == 10


def test_a_record_without_points_gives_none() -> None:
    assert thresholds_of({"dataset": "LFW View 2", "model_id": MODEL, "accuracy": 0.99}) == []
