"""FedFR's personalised protocols against hand-computed cases and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError
from mien.evaluation import (
    OverClients,
    cmc,
    fedfr_pr_at_far,
    fedfr_tpr_at_fpr,
    open_set_at,
    personalised_search,
    personalised_verification,
)
from tests.golden import _reference_evaluation as slow


def on_circle(*degrees: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees])


@pytest.mark.parametrize("block", [3, 7, 1024])
def test_each_pair_with_a_local_image_is_counted_once(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """8 clients of 5 identities with 4 images, as the paper's 40 x 100 x 40: 160 images, 20 of them local."""
    monkeypatch.setattr("mien.evaluation.scores._BLOCK", block)
    labels = np.repeat(np.arange(40), 4)
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(160, 6)) + 2 * rng.normal(size=(40, 6))[labels]
    local = [3, 9, 17, 30, 39]
    histogram = personalised_verification(embeddings, labels, local, bins=512)
    # 5 * C(4, 2) mated; 20 * 140 with others' images + C(20, 2) - 30 among its own.
    assert int(histogram.mated.sum()) == 30
    assert int(histogram.non_mated.sum()) == 20 * 140 + 190 - 30
    mated, non_mated = np.zeros(512, int), np.zeros(512, int)
    for i in range(160):
        for j in range(i):
            if labels[i] in local or labels[j] in local:
                b = min(int((slow.cosine(embeddings[i], embeddings[j]) + 1) * 256), 511)
                (mated if labels[i] == labels[j] else non_mated)[b] += 1
    # Float32 products may cross an edge; nothing may be lost or move further.
    assert np.abs(np.cumsum(histogram.mated - mated)).max() <= 1
    assert np.abs(np.cumsum(histogram.non_mated - non_mated)).max() <= 1


def test_numbers_of_the_paper() -> None:
    local, others = 100 * 40, 3900 * 40
    assert local * (local - 1) // 2 + local * others == 78_000 + 631_920_000


def test_fedfr_tpr_interpolates_the_binned_roc() -> None:
    """Local a at 0 and 10 degrees; others at 60, 90, 100, 180.

    Mated cosine .985. Non-mated with 0: .5, 0, -.174, -1; with 10: .643, .174, 0, -.985. TPR is 1 from FPR 0 on, so
    every target gives 1; with the mate at 80 degrees (.174 with 0) only .5, .94 (80-60) and more lie above it.
    """
    labels = ["a", "a", "b", "c", "d", "e"]
    assert fedfr_tpr_at_fpr(on_circle(0, 10, 60, 90, 100, 180), labels, ["a"], [1e-3, 0.5]) == (1.0, 1.0)
    # Mate at 80: non-mated .5 0 -.174 -1 | .940 .985 .940 -.174: four of eight above .174, one in the next bin below.
    values = fedfr_tpr_at_fpr(on_circle(0, 80, 60, 90, 100, 180), labels, ["a"], [0.25, 0.5, 1.0])
    assert values == (0.0, 1.0, 1.0)
    # One mated (60 degrees: .5) and one non-mated (60 degrees as well) in one bin: the line from (0, 0) to (1, 1).
    tied = fedfr_tpr_at_fpr(on_circle(0, 60, -60), ["a", "a", "b"], ["a"], [0.25])
    assert tied[0] == pytest.approx(0.5)  # second non-mated is -1/2: FPR steps by halves
    with pytest.raises(UndefinedMetricError, match="mated and non-mated"):
        fedfr_tpr_at_fpr(on_circle(0, 60), ["a", "b"], ["a"], [0.1])


def test_fedfr_pr_at_far_is_the_released_codes() -> None:
    """Gallery a: mean of 0 and 60 degrees, length .866 at 30; b: 90 degrees, length 1. Probes: a at 30, b at 80, x, y.

    Own: a .866, b cos 10 = .985. Others: a-b cos 60 = .5; b-a .866 cos 50 = .557; x at 91: a .420, b .99985;
    y at 200: -.853, -.342. N = 4: x = .25 asks for the largest (.99985): none above. x = .5: second, .557: both.
    """
    probes, labels = on_circle(30, 80, 91, 200), ["a", "b", "x", "y"]
    gallery, owners = on_circle(0, 60, 90), ["a", "a", "b"]
    assert fedfr_pr_at_far(probes, labels, gallery, owners, [1e-6, 0.25, 0.5]) == (0.0, 0.0, 1.0)
    # The mean is not normalised again: were it, a would score 1 and beat .99985.
    with pytest.raises(ConfigError, match="asks for rank"):
        fedfr_pr_at_far(probes, labels, gallery, owners, [2.0])
    with pytest.raises(UndefinedMetricError):
        fedfr_pr_at_far(probes[2:], labels[2:], gallery, owners, [0.25])
    standard = personalised_search(probes, labels, gallery, owners)
    assert standard.mate_score[0] == pytest.approx(1.0)
    assert cmc(standard, 1).tolist() == [1.0]
    assert open_set_at(standard, 0.99).fpir == 0.5


def test_local_identities_must_be_tested() -> None:
    with pytest.raises(ConfigError, match="1 of the client's 2 identities"):
        personalised_verification(on_circle(0, 1), ["a", "b"], ["a", "z"])
    with pytest.raises(ConfigError, match="0 of the client's 0"):
        personalised_verification(on_circle(0, 1), ["a", "b"], [])


def test_summary_shows_the_worst_client() -> None:
    summary = OverClients.of([0.9, 0.2, 0.8])
    assert (summary.mean, summary.minimum, summary.median, summary.maximum) == pytest.approx((1.9 / 3, 0.2, 0.8, 0.9))
    with pytest.raises(UndefinedMetricError):
        OverClients.of([])
    with pytest.raises(NonFiniteError):
        OverClients.of([0.1, math.nan])
