"""Shipped thresholds: each follows from the scores that are shipped with it, and belongs to one model."""

from __future__ import annotations

import numpy as np
import pytest

from mien.errors import CorruptDataError
from mien.layout import model_id
from mien.models.known_models import SFACE
from mien.models.known_thresholds import KnownScores, known_scores, known_thresholds
from mien.models.sface_file import read_sface
from mien.rounds.thresholds import PHONES_MAX_FMR
from mien.specs import Threshold
from tests.mien.backbones._models import wheel_model

KNOWN = {scores.title: scores for scores in known_scores().values()}


def bounds(counts: tuple[int, ...], value: float) -> tuple[float, float]:
    """Return between which two shares the scores from `value` on lie, as far as whole bins tell."""
    edges, total = np.linspace(-1, 1, len(counts) + 1), sum(counts)
    least = sum(count for count, low in zip(counts, edges[:-1], strict=True) if low >= value)
    most = sum(count for count, high in zip(counts, edges[1:], strict=True) if high > value)
    return least / total, most / total


@pytest.mark.parametrize("title", sorted(KNOWN))
def test_every_threshold_follows_from_the_scores(title: str) -> None:
    scores = KNOWN[title]
    assert sum(scores.mated) > 10_000
    assert sum(scores.non_mated) > 1_000_000
    for threshold in scores.thresholds:
        of_templates = "templates" in threshold.dataset
        counts = scores.strangers if of_templates else scores.non_mated
        assert threshold.num_non_mated == sum(counts)
        assert threshold.dataset.startswith("LFW")
        least, most = bounds(counts, threshold.value)
        if "bound" in threshold.dataset:
            # Beyond what was measured a single score is more than the rate: it may not be two.
            assert least <= threshold.fmr + 1 / sum(counts)
        elif of_templates:  # measured: as many as the rate allows, less one score
            assert least <= threshold.fmr <= most + 1e-5
        else:
            assert least <= threshold.fmr <= most
            assert threshold.num_mated == sum(scores.mated)


@pytest.mark.parametrize("title", sorted(KNOWN))
def test_phones_decide_with_it_and_search_too(title: str) -> None:
    rates = [threshold.fmr for threshold in KNOWN[title].thresholds]
    assert any(PHONES_MAX_FMR / 2 < rate <= PHONES_MAX_FMR for rate in rates)
    assert min(rates) <= 1e-5, "for a thousand people enrolled"
    by_rate = sorted((t.fmr, -t.value) for t in KNOWN[title].thresholds if "templates" in t.dataset)
    assert by_rate == sorted(by_rate, key=lambda pair: pair[1]), "rarer errors take a higher threshold"


def test_most_mated_pairs_pass_and_strangers_do_not() -> None:
    scores = KNOWN[SFACE.title]
    (at,) = [t for t in scores.thresholds if "templates" not in t.dataset and 5e-4 < t.fmr <= 1e-3]
    assert bounds(scores.mated, at.value)[0] > 0.95
    assert 0.3 < at.value < 0.5


def test_a_model_is_known_by_its_numbers() -> None:
    layout, theta = read_sface(wheel_model(SFACE.filename))
    own = model_id(layout.sha256, theta)
    assert known_thresholds(own) == KNOWN[SFACE.title].thresholds
    trained = theta.copy()
    trained[0] = np.nextafter(trained[0], np.float32(1))
    assert known_thresholds(model_id(layout.sha256, trained)) == ()


def test_thresholds_of_another_model_are_refused() -> None:
    other = Threshold(0.4, 1e-3, "LFW", 1, 1, "b" * 64, "2026-01-01")
    with pytest.raises(CorruptDataError, match="name another model"):
        KnownScores("t", "a" * 64, "LFW", "c" * 64, "", 1, 1, 0, (1,), (1,), (1,), (other,), "", "")
