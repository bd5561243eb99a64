"""A made-up demo report: normal scores, no faces. `python -m tests.simulation.pages.synthetic_demo FILE` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from mien.evaluation import Comparisons, Interval
from simulation.pages.demo_page import (
    DemoReport,
    ModelResult,
    OwnPopulation,
    PhoneCheck,
    Population,
    RoundCost,
    render_demo,
)

METHOD = "bootstrap by identity"


def comparisons(separation: float, *, seed: int, num_mated: int = 1350, num_non_mated: int = 43500) -> Comparisons:
    """Return normal scores whose mated mean lies `separation` above the non-mated one, in units of cosine."""
    rng = np.random.default_rng(seed)
    mated = rng.normal(0.12 + separation, 0.17, num_mated)
    return Comparisons(np.clip(mated, -1, 1), np.clip(rng.normal(0.12, 0.13, num_non_mated), -1, 1))


def demo_report() -> DemoReport:
    """Return a complete report with made-up numbers of the size that the demo gives."""
    eers = (0.131, 0.124, 0.117, 0.109, 0.104, 0.101, 0.098, 0.0965)
    return DemoReport(
        method="fedface",
        num_phones=8,
        num_people=8,
        before=ModelResult(
            "Released model", "3b1f" * 16, comparisons(0.33, seed=1), 1, Interval(0.118, 0.151, 0.95, METHOD)
        ),
        after=ModelResult(
            "After 8 rounds", "9c40" * 16, comparisons(0.40, seed=2), 1, Interval(0.081, 0.112, 0.95, METHOD)
        ),
        rounds=tuple(
            RoundCost(n, 8, 7 if n == 3 else 8, 8 * 12_845_120, 8 * 3_276_800, 11.2 + 0.7 * (n % 3), eer)
            for n, eer in enumerate(eers, 1)
        ),
        populations=(
            Population("Phones", "synthetic faces", 8, 80, "nobody's faces, CC0"),
            Population("Public negatives", "synthetic faces", 20, 200, "nobody's faces, CC0"),
            Population("Test people, on no phone", "synthetic faces", 30, 300, "nobody's faces, CC0"),
        ),
        privacy=(
            "No picture and no embedding of a picture left a phone. Each phone sent how its copy of the model changed, "
            "times the number of its pictures.",
            "This task also sends each phone's class embedding, one vector that stands for its owner, because the "
            "exact spread-out step needs it. That vector is biometric data: with it, the coordinator can recognise the "
            "owner in other pictures.",
            "Contributions were masked: the coordinator saw their sums.",
        ),
        reveals=("class_embeddings",),
        masked=True,
        phone=PhoneCheck(
            device="Phone 3",
            threshold=0.412,
            threshold_source="The threshold keeps false matches at or below 1 % on the test people.",
            owner_decision="Match",
            owner_score=0.687,
            owner_accepted=True,
            stranger_decision="Not this person",
            stranger_score=0.114,
            stranger_accepted=False,
        ),
        reproduce="make demo",
        commit="0123456789ab",
        machine="2 cores, no GPU",
        finished_at="2026-01-31 12:00 UTC",
        duration_s=201.0,
        seed=0,
        own_population=OwnPopulation(
            "LFW", "300 fixed pairs, seed 0, threshold fixed on the released model", 0.99, 0.9867, 150, 150, 0,
            "Labeled Faces in the Wild is for research, non-commercial use.",
        ),
        settings=(("Trainable part", "last fully connected layer, 0.82 M parameters"), ("Learning rate", "0.001")),
    )  # fmt: skip


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render_demo(demo_report()), encoding="utf-8")
