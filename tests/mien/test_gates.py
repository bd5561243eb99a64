"""Gates: what the monitors measure, what chance allows, and what a candidate is refused for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation import Evidence, Monitors, SetEvidence, all_pairs, bootstrap_difference, det_curve, judge
from mien.evaluation.gates import drop_by_chance, effective_rank, is_measurable, monitors, relative_change, tar_at
from mien.evaluation.verification import point_at_fmr
from mien.specs import GateSpec

pytestmark = pytest.mark.numerics

GOOD = SetEvidence("faces", 100, 50_000, 0.90, Monitors(0.02, 40.0), 0.895, Monitors(0.03, 38.0), chance=0.03)


def evidence(*sets: SetEvidence, **changes: Any) -> Evidence:
    return replace(Evidence(is_finite=True, change=0.1, sets=sets or (GOOD,)), **changes)


class TestMonitors:
    def test_effective_rank_of_a_cross_is_its_number_of_axes(self) -> None:
        """+-e_i for i < k: the covariance has k equal eigenvalues, whose entropy is log k."""
        for k in (1, 2, 5):
            axes = np.eye(8)[:k]
            assert effective_rank(np.concatenate([axes, -axes])) == pytest.approx(k)

    def test_effective_rank_by_hand(self) -> None:
        """Variances 0.8 and 0.2 of the total: exp(-(0.8 ln 0.8 + 0.2 ln 0.2)) = 1.6493..."""
        a = np.array([2.0, 0.0]), np.array([0.0, 1.0])
        unit = np.array([a[0] / 2, -a[0] / 2] * 4 + [a[1], -a[1]])
        assert effective_rank(unit) == pytest.approx(1.6493848, abs=1e-6)

    def test_one_and_the_same_embedding_has_no_rank(self) -> None:
        assert effective_rank(np.ones((5, 4))) == 0.0

    def test_mean_cosine_is_that_of_different_people(self) -> None:
        embeddings = np.array([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
        measured = monitors(embeddings, all_pairs(embeddings, [0, 0, 1]))
        assert measured.mean_non_mated == pytest.approx(0.6)


class TestMeasurable:
    def test_thirty_errors_are_expected(self) -> None:
        assert is_measurable(0.001, 30_000)
        assert not is_measurable(0.001, 29_999)

    def test_a_small_set_is_refused_with_what_it_lacks(self) -> None:
        rng = np.random.default_rng(0)
        curve = det_curve(all_pairs(rng.standard_normal((20, 4)), np.repeat(np.arange(5), 4)))
        with pytest.raises(UndefinedMetricError, match="needs 30000 non-mated comparisons or more, the set has 160"):
            tar_at(curve, 0.001)


class TestChance:
    def two_models(self, noise: float) -> Any:
        """Return the comparisons of 12 people with 4 images each by a model, and by one that sees less."""
        rng = np.random.default_rng(3)
        people = np.repeat(rng.standard_normal((12, 16)), 4, axis=0)
        images = people + 0.7 * rng.standard_normal(people.shape)
        worse = images + noise * rng.standard_normal(people.shape)
        labels = np.repeat(np.arange(12), 4)
        return [all_pairs(x, labels, keep_subjects=True) for x in (images, worse)]

    def test_the_same_model_differs_by_nothing(self) -> None:
        one, _ = self.two_models(0.0)
        difference, interval = bootstrap_difference(
            one, one, lambda curve: point_at_fmr(curve, 0.05).tar, rng=np.random.default_rng(0), num_replicates=100
        )
        assert (difference, interval.low, interval.high) == (0.0, 0.0, 0.0)
        assert drop_by_chance(one, one, 0.05, rng=np.random.default_rng(0)) == 0.0

    def test_a_drop_within_chance_and_one_beyond_it(self) -> None:
        for noise, is_beyond in ((0.1, False), (2.0, True)):
            one, other = self.two_models(noise)
            first, second = (point_at_fmr(det_curve(c), 0.05).tar for c in (one, other))
            drop = first - second
            chance = drop_by_chance(one, other, 0.05, rng=np.random.default_rng(0))
            assert 0 < chance < 0.5
            assert (drop > chance) is is_beyond

    def test_other_people_are_refused(self) -> None:
        one, _ = self.two_models(0.0)
        other = all_pairs(
            np.random.default_rng(0).standard_normal((48, 4)), np.repeat(np.arange(6), 8), keep_subjects=True
        )
        with pytest.raises(ConfigError, match="same people"):
            bootstrap_difference(one, other, lambda curve: 0.0, rng=np.random.default_rng(0), num_replicates=100)


class TestJudge:
    def test_a_good_candidate_passes(self) -> None:
        assert judge(GateSpec(), evidence()) == ()

    @pytest.mark.parametrize(
        ("tar", "gates", "passes"),
        [
            (0.891, GateSpec(), True),
            (0.889, GateSpec(), False),
            (0.889, GateSpec(tolerance="interval"), True),
            (0.869, GateSpec(tolerance="interval"), False),
            (0.875, GateSpec(tolerance="larger"), True),
            (0.85, GateSpec(tolerance="larger", delta=0.06), True),
            (0.95, GateSpec(delta=0.0), True),
        ],
    )
    def test_tar(self, tar: float, gates: GateSpec, passes: bool) -> None:
        reasons = judge(gates, evidence(replace(GOOD, candidate_tar=tar)))
        assert (reasons == ()) is passes
        if not passes:
            assert f"its TAR at FMR 0.001 is {tar:.4f}, the released model's 0.9000" in reasons[0]

    def test_one_bad_set_among_good_ones_is_named(self) -> None:
        (reason,) = judge(GateSpec(), evidence(GOOD, replace(GOOD, name="others", candidate_tar=0.5)))
        assert reason.startswith("on others, ")

    @pytest.mark.parametrize(
        ("bad", "words"),
        [
            (evidence(is_finite=False), "not finite"),
            (evidence(change=1.5), "gates.max_change"),
            (Evidence(True, 0.1, ()), "no evaluation set"),
            (evidence(replace(GOOD, candidate=Monitors(0.2, 38.0))), "more alike"),
            (evidence(replace(GOOD, candidate=Monitors(0.02, 19.0))), "effective rank is 19.0"),
            (evidence(replace(GOOD, candidate=None, candidate_tar=None, problem="all scores are equal")), "all scores"),
        ],
    )
    def test_what_else_is_refused(self, bad: Evidence, words: str) -> None:
        (reason,) = judge(GateSpec(), bad)
        assert words in reason

    @pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("tolerance", ["delta", "interval", "larger"])
    def test_no_figure_that_is_not_finite_passes(self, figure: float, tolerance: Any) -> None:
        """Every comparison with NaN is false, and an infinite allowance would allow everything: neither may pass."""
        gates = GateSpec(tolerance=tolerance)
        assert judge(gates, evidence(GOOD)) == ()
        bad = [
            evidence(change=figure),
            evidence(replace(GOOD, reference_tar=figure)),
            evidence(replace(GOOD, candidate_tar=figure)),
            evidence(replace(GOOD, chance=figure)),
            evidence(replace(GOOD, reference=replace(GOOD.reference, mean_non_mated=figure))),
            evidence(replace(GOOD, reference=replace(GOOD.reference, effective_rank=figure))),
            evidence(replace(GOOD, candidate=Monitors(figure, 38.0))),
            evidence(replace(GOOD, candidate=Monitors(0.03, figure))),
            evidence(GOOD, replace(GOOD, candidate_tar=figure, candidate=Monitors(figure, figure))),
        ]
        for each in bad:
            (reason,) = judge(gates, each)
            assert "not measured" in reason
            assert "not a finite number" in reason

    def test_distance_is_in_norms_of_the_reference(self) -> None:
        assert relative_change(np.array([3, 4], np.float32), np.array([3, 1], np.float32)) == pytest.approx(0.6)


@pytest.mark.parametrize(
    "changes",
    [
        {"every": -1},
        {"fmr": 0.0},
        {"share": 1.1},
        {"tolerance": "x"},
        {"release": "x"},
        {"on_failure": "x"},
        {"delta": 2.0},
    ],
)
def test_gates_refuse_what_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"gates.{next(iter(changes))}"):
        GateSpec(**changes)


def test_when_a_model_is_a_candidate() -> None:
    assert [n for n in range(1, 8) if GateSpec().is_due(n, 7)] == [7]
    assert [n for n in range(1, 8) if GateSpec(every=3).is_due(n, 7)] == [3, 6, 7]
