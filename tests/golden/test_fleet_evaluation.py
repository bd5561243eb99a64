"""Federated evaluation against an independent count over raw scores; sums that no honest phones make."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mien.contribution import ContributionLayout, Lane, Total
from mien.errors import ConfigError, CorruptDataError, NonFiniteError, UndefinedMetricError
from mien.evaluation import Comparisons
from mien.evaluation.fleet import (
    Estimate,
    FleetFigures,
    addends,
    allowed_drop,
    check_sums,
    estimate,
    figures,
    judge_fleet,
    lanes,
    norm_bound,
    phone_comparisons,
)
from mien.evaluation.intervals import student_t
from mien.evaluation.rollout_spec import FleetGates, RollOutSpec
from mien.methods.federated_evaluation import FEDERATED_EVALUATION, figures_of, measured, privacy_of
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, run_task
from simulation.engines.sums import cohort_sum
from tests.tiny import made_up_crops, tiny_cnn

BINS = 200
Scores = NDArray[np.float64]


def drawn_phone(seed: int, *, shift: float = 0.0) -> Comparisons:
    """Return made-up scores of one phone: some mated ones near 0.6, more of strangers near 0."""
    rng = np.random.default_rng(seed)
    mated = np.clip(rng.normal(0.6 + shift + 0.05 * rng.standard_normal(), 0.15, rng.integers(2, 9)), -1, 1)
    return Comparisons(mated, np.clip(rng.normal(0.0, 0.12, 250), -1, 1))


def summed(phones: list[list[Comparisons]], thresholds: tuple[float, ...]) -> dict[str, Scores]:
    """Return the sum of what these phones add, lane by lane."""
    told = [addends(compared, thresholds, bins=BINS) for compared in phones]
    return {name: np.sum([each[name].astype(np.float64) for each in told], axis=0) for name in told[0]}


PHONES = [[drawn_phone(seed), drawn_phone(seed, shift=0.03)] for seed in range(40)]
THRESHOLDS = (0.41, 0.44)


class TestOnAPhone:
    def test_hand_computed_comparisons(self) -> None:
        """Two pictures at right angles, one of somebody else, one public; a person's template is their mean."""
        own = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        found = phone_comparisons(own, np.array([0, 0, 1]), np.array([[1.0, 1.0, 0.0]]))
        np.testing.assert_allclose(found.mated, [0.0, 0.0])
        # The other's picture and the public one with the first template, then those with the second person's.
        np.testing.assert_allclose(found.non_mated, [0.0, 1.0, 0.0, 0.0, 0.0], atol=1e-12)

    def test_leave_one_out(self) -> None:
        own = np.array([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
        found = phone_comparisons(own, np.zeros(3, np.int64), np.zeros((0, 2)))
        template = np.array([1.6, 0.8]) / math.hypot(1.6, 0.8)
        np.testing.assert_allclose(found.mated, [template[0], template[0], 0.6])
        assert found.num_non_mated == 0

    @pytest.mark.parametrize("broken", [[np.nan, 0.0], [0.0, 0.0], [np.inf, 1.0]])
    def test_what_has_no_embedding_matches_nobody(self, broken: list[float]) -> None:
        own = np.array([[1.0, 0.0], broken])
        found = phone_comparisons(own, np.zeros(2, np.int64), np.array([[1.0, 0.0], broken]))
        assert list(found.mated) == [-1.0, -1.0]
        assert list(found.non_mated) == [1.0, -1.0]

    def test_every_phone_counts_alike_and_within_its_bound(self) -> None:
        few, many = (Comparisons(np.full(n, 0.5), np.full(100 * n, 0.1)) for n in (2, 900))
        for scores in (few, many):
            told = addends([scores, scores], THRESHOLDS, bins=BINS)
            assert told["mated"].sum() == pytest.approx(1)
            assert told["non_mated"].sum() == pytest.approx(1)
            vector = np.concatenate(list(told.values()))
            assert np.abs(vector).max() <= 1
            assert np.linalg.norm(vector) <= norm_bound(BINS, is_paired=True)
        assert {name: values.size for name, values in told.items()} == {
            lane.name: lane.size for lane in lanes(BINS, is_paired=True)
        }
        # A phone cannot say that it made more comparisons than the cap.
        assert list(addends([many], THRESHOLDS, bins=BINS)["comparisons"]) == [1.0, 1.0]


class TestTheSum:
    found = figures(summed(PHONES, THRESHOLDS), len(PHONES), THRESHOLDS)

    @pytest.mark.parametrize("index", [0, 1])
    def test_rates_are_those_of_the_raw_scores(self, index: int) -> None:
        """At the threshold rates are exact; the DET curve is exact at the edges of bins."""
        model = self.found.model if index == 0 else self.found.reference
        assert model is not None
        t = THRESHOLDS[index]
        tars = [float(np.mean(phone[index].mated >= t)) for phone in PHONES]
        fmrs = [float(np.mean(phone[index].non_mated >= t)) for phone in PHONES]
        assert (model.tar.value, model.fmr.value) == (
            pytest.approx(np.mean(tars), abs=1e-6),
            pytest.approx(np.mean(fmrs), abs=1e-6),
        )
        half = student_t(39) * np.std(tars, ddof=1) / math.sqrt(40)
        assert model.tar.half_width == pytest.approx(half, rel=1e-3)
        for point in model.points:
            raw_fmr = np.mean([np.mean(phone[index].non_mated >= point.threshold) for phone in PHONES])
            raw_tar = np.mean([np.mean(phone[index].mated >= point.threshold) for phone in PHONES])
            assert (point.fmr, point.tar.value) == (pytest.approx(raw_fmr, abs=1e-6), pytest.approx(raw_tar, abs=1e-6))
            below = point.threshold - 2 / BINS  # a bin lower, the target would be missed: the edge is the best there is
            assert np.mean([np.mean(phone[index].non_mated >= below) for phone in PHONES]) > point.target_fmr
        assert [point.target_fmr for point in model.points] == [0.1, 0.01]  # 10,000 comparisons: 0.001 needs 30,000

    def test_the_equal_error_rate_lies_within_a_bin_of_the_raw_one(self) -> None:
        """Swept over thresholds 100 times finer than a bin, with every phone of weight 1."""

        def rates(t: float) -> tuple[float, float]:
            fmr = float(np.mean([np.mean(phone[0].non_mated >= t) for phone in PHONES]))
            return fmr, float(np.mean([np.mean(phone[0].mated < t) for phone in PHONES]))

        sweep = [rates(t) for t in np.arange(-0.2, 0.8, 2 / BINS / 100)]
        raw = min(sweep, key=lambda pair: abs(pair[0] - pair[1]))
        edges = [rates(t) for t in np.linspace(-1, 1, BINS + 1)]
        crossing = next(k for k, (fmr, fnmr) in enumerate(edges) if fnmr >= fmr)
        low, high = edges[crossing][0], edges[crossing - 1][0]
        assert low <= self.found.model.eer <= high
        assert min(raw) - (high - low) <= self.found.model.eer <= max(raw) + (high - low)

    def test_the_difference_is_paired(self) -> None:
        first, second = ([np.mean(phone[i].mated >= THRESHOLDS[i]) for phone in PHONES] for i in (0, 1))
        drops = np.array(second) - np.array(first)
        assert self.found.tar_drop is not None
        assert self.found.tar_drop.value == pytest.approx(drops.mean(), abs=1e-6)
        assert self.found.tar_drop.half_width == pytest.approx(
            student_t(39) * drops.std(ddof=1) / math.sqrt(40), rel=1e-3
        )

    def test_monitors_are_those_of_the_raw_scores_within_a_bin(self) -> None:
        strangers = np.concatenate([phone[0].non_mated for phone in PHONES])  # as many on each phone
        monitors = self.found.model.monitors
        assert monitors.mean_non_mated == pytest.approx(strangers.mean(), abs=1 / BINS)
        assert monitors.effective_dimension == pytest.approx(1 / np.mean(strangers**2), rel=0.05)

    def test_counts_and_phones_without_pairs(self) -> None:
        alone = [Comparisons(np.zeros(0), phone[0].non_mated) for phone in PHONES[:5]]
        found = figures(summed([*PHONES, *([each, each] for each in alone)], THRESHOLDS), 45, THRESHOLDS)
        assert (found.num_phones, found.num_mated_phones, found.num_non_mated) == (45, 40, 45 * 250)
        assert found.model.tar.value == pytest.approx(self.found.model.tar.value)
        with pytest.raises(UndefinedMetricError, match="0 phones had two pictures"):
            figures(summed([[each, each] for each in alone], THRESHOLDS), 5, THRESHOLDS)


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)]
)
def test_student_t_against_the_printed_table(freedom: int, value: float) -> None:
    assert student_t(freedom) == pytest.approx(value, rel=0.013)


phones = st.builds(
    Comparisons,
    st.lists(st.floats(-1, 1) | st.sampled_from([-1.0, 0.0, 1.0]), max_size=5).map(np.array),
    st.lists(st.floats(-1, 1) | st.sampled_from([-1.0, 0.41, 1.0]), min_size=1, max_size=9).map(np.array),
)


def lie(sums: dict[str, Scores], lane: str, index: int, value: float) -> dict[str, Scores]:
    told = {name: values.copy() for name, values in sums.items()}
    told[lane][index] += value
    return told


class TestHostilePhones:
    honest = summed(PHONES, THRESHOLDS)

    def test_an_honest_sum_passes(self) -> None:
        check_sums(self.honest, len(PHONES))

    @pytest.mark.parametrize(
        ("lane", "index", "value"),
        [
            ("mated", 3, -1.0),  # a negative count
            ("mated", 3, 1.0),  # one more phone than there is
            ("reference_non_mated", 190, 40.0),  # an oversized count
            ("mated_squares", 0, 5.0),  # a square above what it is of
            ("non_mated_squares", 150, -1.0),
            ("at_threshold", 0, 30.0),
            ("at_threshold", 1, -39.0),
            ("reference_at_threshold", 3, 2.0),
            ("difference", 0, -41.0),
            ("difference", 3, -1.0),
            ("phones", 0, 3.0),
            ("comparisons", 1, 50.0),
        ],
    )
    def test_a_careless_lie_is_found(self, lane: str, index: int, value: float) -> None:
        with pytest.raises(CorruptDataError, match="none that phones' histograms add up to"):
            check_sums(lie(self.honest, lane, index, value), len(PHONES))

    @given(st.lists(phones, min_size=1, max_size=12))
    @settings(max_examples=60, deadline=None)
    def test_no_honest_phones_are_ever_refused(self, drawn: list[Comparisons]) -> None:
        """Whatever they hold: nothing mated, one score, ties at either end."""
        check_sums(summed([[each, each] for each in drawn], THRESHOLDS), len(drawn))

    @pytest.mark.parametrize(("lane", "value"), [("mated", 50.0), ("non_mated", -1.0), ("difference", 30.0)])
    def test_masked_sums_clip_what_is_out_of_bounds_and_the_rest_is_found(self, lane: str, value: float) -> None:
        """A phone that keeps to the protocol cannot add more than 1 anywhere; what it adds then does not fit."""
        task = task_of(cohort=CohortSpec(40, 4))
        layout = FEDERATED_EVALUATION.contribution_layout(task, PART, DIM)
        ring, one = cohort_sum(task, layout, "ring", 1), np.ones(1, np.float32)
        for number, compared in enumerate(PHONES[:6]):
            told = {"count": one, "weight": one, **addends(compared, THRESHOLDS, bins=BINS)}
            if number == 0:
                told[lane] = told[lane].copy()
                told[lane][0] = value
            ring.add(f"phone{number}", layout.pack(told))
        total = ring.total()
        assert abs(total[lane][0]) <= 6 + 1e-3
        state = FEDERATED_EVALUATION.server_start(task, PART, TINY.theta)
        with pytest.raises(CorruptDataError):
            FEDERATED_EVALUATION.server_step(task, PART, state, total, {})

    def test_nothing_of_such_a_sum_is_used(self) -> None:
        task = task_of()
        layout = FEDERATED_EVALUATION.contribution_layout(task, PART, DIM)
        total = Total(layout, np.zeros(layout.summed_size), 3)
        total["mated"][0] = 7.0
        state = FEDERATED_EVALUATION.server_start(task, PART, TINY.theta)
        with pytest.raises(CorruptDataError):
            FEDERATED_EVALUATION.server_step(task, PART, state, total, {})

    def test_a_phone_that_would_send_nan_or_other_bins_does_not(self) -> None:
        layout = ContributionLayout((Lane("count", 1), Lane("weight", 1), *lanes(BINS, is_paired=False)))
        one = np.ones(1, np.float32)
        told = {"count": one, "weight": one, **addends([PHONES[0][0]], THRESHOLDS, bins=BINS)}
        with pytest.raises(NonFiniteError):
            layout.pack({**told, "mated": np.full(BINS, np.nan, np.float32)})
        with pytest.raises(CorruptDataError, match="lane mated has 2 elements"):
            layout.pack({**told, "mated": np.ones(2, np.float32)})


class TestGates:
    def figures(self, **changes: Any) -> FleetFigures:
        return replace(TestTheSum.found, **changes)

    def test_the_same_model_passes(self) -> None:
        same = [[phone[0], phone[0]] for phone in PHONES]
        assert judge_fleet(FleetGates(), figures(summed(same, (0.41, 0.41)), 40, (0.41, 0.41))) == ()

    def test_a_drop_beyond_delta_and_chance_fails(self) -> None:
        gates = FleetGates(tolerance="larger", delta=0.01)
        certain = self.figures(tar_drop=Estimate(0.03, 0.01, 0.05))
        (reason,) = judge_fleet(gates, certain)
        assert "accept their owners less often" in reason
        assert judge_fleet(gates, self.figures(tar_drop=Estimate(0.03, -0.01, 0.07))) == ()  # chance explains it
        assert judge_fleet(replace(gates, tolerance="delta"), self.figures(tar_drop=Estimate(0.03, -0.01, 0.07)))
        assert judge_fleet(gates, self.figures(tar_drop=Estimate(0.009, 0.008, 0.010))) == ()  # within a point
        assert judge_fleet(replace(gates, tolerance="interval"), self.figures(tar_drop=Estimate(0.009, 0.008, 0.010)))
        assert allowed_drop(gates, Estimate(0.0, -0.5, 0.5)) == 0.5
        assert judge_fleet(gates, self.figures(tar_drop=Estimate(math.nan, 0.0, 0.0)))

    def test_a_collapsed_model_fails_though_it_accepts_its_owners(self) -> None:
        ones = Comparisons(np.ones(4), np.ones(250))
        found = figures(summed([[ones, phone[0]] for phone in PHONES], THRESHOLDS), 40, THRESHOLDS)
        assert found.model.tar.value == 1
        told = judge_fleet(FleetGates(), found)
        assert [
            word for word in ("strangers", "more alike", "collapsed") if any(word in reason for reason in told)
        ] == [
            "strangers",
            "more alike",
            "collapsed",
        ]

    def test_without_a_second_model_there_is_nothing_to_say(self) -> None:
        single = figures(summed([phone[:1] for phone in PHONES], THRESHOLDS[:1]), 40, THRESHOLDS[:1])
        assert judge_fleet(FleetGates(), single) == ("phones compared it with no other model",)

    @pytest.mark.parametrize(
        "changes",
        [{"stages": ()}, {"stages": (0.1, 0.1)}, {"stages": (1.0,)}, {"stages": (0.5, 1.5)}, {"min_cohort": 17}],
    )
    def test_a_roll_out_that_cannot_be_is_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            RollOutSpec(**changes)


def taken_back(num_phones: int, loss: float, *, num_cohorts: int, num_pictures: int = 8, shared: float = 0.8) -> float:
    """Return the share of made-up cohorts that take a model back which accepts owners `loss` less often.

    Phones' own TAR is drawn from Beta(19, 1), 0.95 on average; both models judge a picture alike with that probability.
    """
    rng, refused = np.random.default_rng(0), 0
    for _ in range(num_cohorts):
        tar_N = rng.beta(19, 1, num_phones)
        before = rng.random((num_phones, num_pictures))
        after = np.where(rng.random(before.shape) < shared, before, rng.random(before.shape))
        change_N = (after < (tar_N - loss)[:, None]).mean(axis=1) - (before < tar_N[:, None]).mean(axis=1)
        drop = estimate(-float(change_N.sum()), float((change_N**2).sum()), num_phones)
        refused += drop.value > allowed_drop(FleetGates(), drop)
    return refused / num_cohorts


@pytest.mark.parametrize(
    ("num_phones", "loss", "low", "high"),
    [(16, 0.0, 0.0, 0.02), (16, 0.1, 0.9, 1.0), (40, 0.0, 0.0, 0.04), (40, 0.05, 0.92, 1.0), (100, 0.02, 0.78, 0.92)],
)
def test_how_often_a_cohort_takes_a_model_back(num_phones: int, loss: float, low: float, high: float) -> None:
    """The table in docs/fleet-metrics.md, at fewer draws."""
    assert low <= taken_back(num_phones, loss, num_cohorts=400) <= high


TINY = tiny_cnn()
PART = TINY.part()
DIM = TINY.spec.input.dim
OTHER = "ab" * 32
PUBLIC = PublicFaces(np.concatenate([made_up_crops(2, seed=90 + k) for k in range(6)]), np.repeat(np.arange(6), 2))


def task_of(**changes: Any) -> TaskSpec:
    options = {"threshold": 0.8, "reference": OTHER, "reference_threshold": 0.8, "bins": BINS, "public_images": 8}
    values: dict[str, Any] = {
        "method": "federated_evaluation",
        "rounds": 1,
        "cohort": CohortSpec(4, 4),
        "privacy": privacy_of(min_cohort=4, is_paired=True, bins=BINS),
        "options": options,
    }
    return TaskSpec("fleet", **{**values, **changes})


def cohort_of(count: int = 4) -> Cohort:
    crops = {f"phone{i}": made_up_crops(5, seed=i) for i in range(count)}
    labels = {"phone0": np.array([0, 0, 0, 1, 1])}
    return Cohort(crops, public=PUBLIC, labels=labels, models={OTHER: TINY.theta * np.float32(1.01)})


def test_the_ring_says_what_the_exact_sum_says_and_both_what_one_counts_by_hand() -> None:
    """The simulator's phones, under the arithmetic of secure aggregation and without it; the model stays as it was."""
    task, cohort = task_of(), cohort_of()
    exact, ring = (run_task(task, PART, DIM, TINY.theta, cohort, TINY.runtime(), sums=s) for s in ("exact", "ring"))
    for run in (exact, ring):
        np.testing.assert_array_equal(run.state.theta, TINY.theta)
    one, other = figures_of(task, exact.state), figures_of(task, ring.state)
    assert one.model.tar.value == pytest.approx(other.model.tar.value, abs=1e-4)
    assert one.model.eer == pytest.approx(other.model.eer, abs=1e-3)
    assert (one.num_phones, other.num_phones) == (4, 4)
    public = np.random.default_rng(0).choice(12, 8, replace=False)
    tars, fmrs = [], []
    for name, crops in cohort.crops.items():
        own, strangers = (TINY.runtime().embed(TINY.theta, c).astype(float) for c in (crops, PUBLIC.crops[public]))
        label = cohort.labels.get(name, np.zeros(5, np.int64))
        mated, non_mated = [], []
        for k in range(5):
            rest = own[[j for j in range(5) if j != k and label[j] == label[k]]].sum(axis=0)
            mated.append(own[k] @ rest / np.linalg.norm(rest))
        for person in set(label.tolist()):
            template = own[label == person].sum(axis=0)
            template /= np.linalg.norm(template)
            non_mated += [*(own[label != person] @ template), *(strangers @ template)]
        tars.append(np.mean(np.array(mated) >= 0.8))
        fmrs.append(np.mean(np.array(non_mated) >= 0.8))
    assert (one.model.tar.value, one.model.fmr.value) == (
        pytest.approx(np.mean(tars), abs=1e-6),
        pytest.approx(np.mean(fmrs), abs=1e-6),
    )
    record = measured(task, exact.state)
    assert (record["protocol"], record["reference_model_id"], record["num_phones"]) == ("fleet", OTHER, 4)
    assert len(record["figures"]["model"]["mated"]) == BINS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"threshold": 0.5, "reference": "x" * 64, "reference_threshold": 0.5}}, "not the id"),
        ({"options": {"threshold": 0.5, "reference": OTHER}}, "go together"),
        ({"options": {"threshold": 1.5}}, "a cosine"),
        ({"options": {"threshold": 0.5, "share": 0.0}}, "share"),
        ({"options": {"threshold": 0.5, "bins": 5}}, "bins"),
        ({"privacy": PrivacySpec(min_cohort=4, l2_clip=1.0)}, "would be clipped"),
        ({"privacy": PrivacySpec(min_cohort=4, max_weight=1, dp=DpSpec("skellam", 1.0, 8.0, 1e-6, 5)),
          "trainable": ("embedding.*",)}, "has no noise"),
    ],
)  # fmt: skip
def test_a_task_whose_sums_would_be_no_histograms_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FEDERATED_EVALUATION.contribution_layout(task_of(**changes), PART, DIM)


def test_a_phone_without_what_it_needs_leaves() -> None:
    with pytest.raises(ConfigError, match="without public faces"):
        run_task(task_of(), PART, DIM, TINY.theta, replace(cohort_of(), public=None), TINY.runtime())
    with pytest.raises(ConfigError, match="compare with is not here"):
        run_task(task_of(), PART, DIM, TINY.theta, replace(cohort_of(), models={}), TINY.runtime())


def test_one_phone_is_no_fleet() -> None:
    with pytest.raises(UndefinedMetricError, match="two phones or more"):
        figures(summed([PHONES[0]], THRESHOLDS), 1, THRESHOLDS)
