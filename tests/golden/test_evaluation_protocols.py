"""LFW and folder protocols, failures and records against hand-computed cases."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.errors import ConfigError, CorruptDataError, NonFiniteError, UndefinedMetricError
from mien.evaluation import (
    CaptureCounts,
    FoldAccuracy,
    Interval,
    MetricRecord,
    Provenance,
    accuracy_at,
    best_threshold,
    dataset_digest,
    generalised_rates,
    kfold_accuracy,
    system_rates,
)
from mien.evaluation.protocols import folders, lfw
from tests.golden import _reference_evaluation as slow

PAIRS = (
    "2\t2\nAda\t1\t2\nBea\t1\t2\nAda\t1\tBea\t1\nAda\t2\tCyd\t1\nCyd\t1\t2\nAda\t1\t3\nBea\t2\tCyd\t2\nAda\t3\tBea\t1\n"
)

# Angles in degrees on the unit circle: squared distance of two is 2 - 2 cos(difference).
ANGLES = {
    ("Ada", 1): 0, ("Ada", 2): 20, ("Ada", 3): 80, ("Bea", 1): 90, ("Bea", 2): 120, ("Cyd", 1): 180, ("Cyd", 2): 210,
}  # fmt: skip
SAMPLES = [lfw.LfwSample(*key) for key in ANGLES]
EMBEDDINGS = np.array([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in ANGLES.values()])
PROVENANCE = Provenance("hand", "0" * 64, "m", "c", "pytest", 7)


def test_pair_list_is_read_in_file_order() -> None:
    pairs = lfw.parse_pairs(PAIRS)
    assert pairs.num_folds == 2
    assert [(a.path, b.path) for a, b in pairs.pairs[:3]] == [
        ("Ada/Ada_0001.jpg", "Ada/Ada_0002.jpg"),
        ("Bea/Bea_0001.jpg", "Bea/Bea_0002.jpg"),
        ("Ada/Ada_0001.jpg", "Bea/Bea_0001.jpg"),
    ]
    assert pairs.mated.tolist() == [True, True, False, False] * 2
    assert pairs.folds.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(pairs.samples) == 7
    assert lfw.parse_pairs(PAIRS.replace("\n", "\r\n") + "\n\n").pairs == pairs.pairs


def test_header_with_one_number_is_one_fold() -> None:
    assert lfw.parse_pairs("1\nAda 1 2\nAda 1 Bea 1\n").num_folds == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2\t2\n", "", "line 1 .* 'folds pairs'"),
        ("2\t2\n", "2\t3\n", "9 lines, its header announces 13"),
        ("2\t2\n", "2\t2\t2\n", "line 1"),
        ("2\t2\n", "0\t2\n", "line 1"),
        ("Ada\t1\t2\n", "Ada\t1\tAda\t2\n", "line 2 .* 4 fields; it should be mated"),
        ("Ada\t1\t2\n", "Ada\t1\t1\n", "line 2 .* with itself"),
        ("Ada\t1\t2\n", "Ada\t1\t0\n", "line 2 .*'0' is not"),
        ("Ada\t1\t2\n", "Ada\t1\t-2\n", "line 2 .*'-2' is not"),
        ("Ada\t1\t2\n", "../Ada\t1\t2\n", "line 2 .* folder name"),
        ("Ada\t1\tBea\t1\n", "Ada\t1\tAda\t2\n", "line 4 .* one person twice"),
        ("Ada\t1\tBea\t1\n", "Ada\t1\tBea\n", "line 4 .* 3 fields; it should be non-mated"),
        ("Ada\t3\tBea\t1\n", "Ada\t3\tBea\t1\nAda\t1\tBea\t2\n", "10 lines"),
    ],
)
def test_broken_pair_lists_are_named_by_line(old: str, new: str, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        lfw.parse_pairs(PAIRS.replace(old, new, 1))


def test_empty_pair_list() -> None:
    with pytest.raises(CorruptDataError, match="line 1"):
        lfw.parse_pairs("")


def test_ten_fold_by_hand() -> None:
    """Angles: fold 0 mated 20, 30, non-mated 90, 160; fold 1 mated 30, 80, non-mated 90, 10.

    Distances 2 - 2 cos: 10 .0304, 20 .1206, 30 .2679, 80 1.6527, 90 2. On fold 1: t in (.0304, .2679] gets 1 of 4,
    (.2679, 1.6527] 2, (1.6527, 2] 3, and 0 .. .03 gets 2: best first is 1.66. On fold 0: (.2679, 2] gets all 4: .27.
    Fold 0 at 1.66: 4/4. Fold 1 at .27: 30 right, 80 wrong, 90 right, 10 wrong: 2/4.
    """
    result = lfw.evaluate(lfw.parse_pairs(PAIRS), SAMPLES, EMBEDDINGS)
    assert result.algorithm.accuracies == (1.0, 0.5)
    assert result.algorithm.thresholds == pytest.approx((1.66, 0.27))
    assert result.algorithm.mean == 0.75
    assert result.algorithm.std_population == 0.25
    assert result.algorithm.standard_error == pytest.approx(0.25)  # sample std .35355 / sqrt 2
    assert result.system == result.algorithm
    assert (result.num_samples, result.num_fte) == (7, 0)


def test_failed_samples_are_counted_not_hidden() -> None:
    """Ada_0003 failed: mated pair (Ada 1, 3) and non-mated pair (Ada 3, Bea 1) need it."""
    lost = lfw.LfwSample("Ada", 3)
    kept = [sample for sample in SAMPLES if sample != lost]
    result = lfw.evaluate(
        lfw.parse_pairs(PAIRS), kept, EMBEDDINGS[[s != lost for s in SAMPLES]], failed=[lost, lfw.LfwSample("Zoe", 1)]
    )
    assert result.num_fte == 1  # Zoe is in no pair
    assert (result.algorithm.num_mated, result.algorithm.num_non_mated) == (3, 3)
    assert result.algorithm.fold_sizes == (4, 2)
    # Fold 1 keeps mated 30 and non-mated 90: best first threshold .27, all right both ways.
    assert result.algorithm.accuracies == (1.0, 1.0)
    # System: the lost mated pair is an error, the lost non-mated pair a correct rejection.
    assert result.system.accuracies == (1.0, 0.75)
    assert (result.system.num_mated, result.system.num_non_mated) == (4, 4)
    pooled = result.scores.comparisons(system_level=True)
    assert (pooled.num_mated, pooled.num_non_mated) == (4, 4)
    assert pooled.mated.min() == -1.0
    assert result.scores.comparisons().num_mated == 3


def test_every_sample_must_be_accounted_for() -> None:
    pairs = lfw.parse_pairs(PAIRS)
    with pytest.raises(ConfigError, match=r"1 samples are neither .* Ada/Ada_0001\.jpg"):
        lfw.evaluate(pairs, SAMPLES[1:], EMBEDDINGS[1:])
    with pytest.raises(ConfigError, match="both embedded and declared failed"):
        lfw.evaluate(pairs, SAMPLES, EMBEDDINGS, failed=SAMPLES[:1])
    with pytest.raises(ConfigError, match="one for each"):
        lfw.evaluate(pairs, SAMPLES[:-1], EMBEDDINGS)


def test_failures_that_empty_a_fold_are_an_error() -> None:
    pairs = lfw.parse_pairs(PAIRS)
    with pytest.raises(UndefinedMetricError, match="at least one pair"):
        lfw.evaluate(pairs, SAMPLES[1:2], EMBEDDINGS[1:2], failed=[s for s in SAMPLES if s != SAMPLES[1]])


def test_lfw_records_carry_everything() -> None:
    records = lfw.evaluate(lfw.parse_pairs(PAIRS), SAMPLES, EMBEDDINGS).records(PROVENANCE)
    assert [r.metric for r in records] == ["accuracy_algorithm_level", "accuracy_system_level"]
    record = records[0]
    assert (record.value, record.num_mated, record.num_non_mated, record.num_fte) == (0.75, 4, 4, 0)
    assert record.details["std_population"] == 0.25
    assert record.threshold == pytest.approx(1 - (1.66 + 0.27) / 4)
    assert record.interval is not None
    assert record.provenance.seed == 7


def test_an_accuracys_interval_is_as_wide_as_its_few_folds_warrant() -> None:
    """Ten folds have nine degrees of freedom: t is 2.262 in the printed table, where a normal's is 1.960."""
    folds = FoldAccuracy((0.9, 0.8) * 5, (1.0,) * 10, 50, 50, (10,) * 10)
    result = replace(lfw.evaluate(lfw.parse_pairs(PAIRS), SAMPLES, EMBEDDINGS), algorithm=folds)
    interval = result.records(PROVENANCE)[0].interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.85 - 2.262 * 0.05 / 3, 0.85 + 2.262 * 0.05 / 3), abs=1e-4)


@given(
    st.lists(st.tuples(st.integers(0, 16), st.booleans()), min_size=6, max_size=18),
    st.integers(2, 3),
)
@settings(max_examples=40, deadline=None)
def test_kfold_agrees_with_the_slow_reference(pairs: list[tuple[int, bool]], num_folds: int) -> None:
    distances = [d / 4 for d, _ in pairs]
    mated, folds = [same for _, same in pairs], [i % num_folds for i in range(len(pairs))]
    found = kfold_accuracy(np.array(distances), np.array(mated), np.array(folds))
    accuracies, thresholds = slow.kfold(distances, mated, folds)
    assert found.accuracies == pytest.approx(accuracies)
    assert found.thresholds == pytest.approx(thresholds)


def test_kfold_refuses_what_it_cannot_measure() -> None:
    d, same = np.array([0.1, 3.0]), np.array([True, False])
    with pytest.raises(UndefinedMetricError):
        kfold_accuracy(d, same, np.array([0, 0]))
    with pytest.raises(UndefinedMetricError):
        kfold_accuracy(d, same, np.array([0, 2]))
    with pytest.raises(UndefinedMetricError):
        kfold_accuracy(np.zeros(0), np.zeros(0, bool), np.zeros(0, np.int64))
    with pytest.raises(NonFiniteError):
        kfold_accuracy(np.array([0.1, np.nan]), same, np.array([0, 1]))
    with pytest.raises(ConfigError):
        kfold_accuracy(d, same, np.array([-1, 1]))
    with pytest.raises(UndefinedMetricError):
        best_threshold(np.zeros(0), np.zeros(0, bool))
    with pytest.raises(UndefinedMetricError):
        accuracy_at(np.zeros(0), np.zeros(0, bool), 1.0)
    assert best_threshold(d, same) == pytest.approx(0.11)
    assert accuracy_at(d, same, 0.1) == 0.5  # strictly below: 0.1 is not accepted


def test_real_pair_lists_are_read() -> None:
    root = os.environ.get("MIEN_DATA")
    if not root:
        pytest.skip("MIEN_DATA is unset: the official LFW pair lists are not read")
    protocol = Path(root) / "lfw" / "protocol"
    view2 = lfw.parse_pairs((protocol / "pairs.txt").read_text())
    assert (view2.num_folds, len(view2.pairs), int(view2.mated.sum()), len(view2.samples)) == (10, 6000, 3000, 7701)
    assert len(lfw.parse_pairs((protocol / "pairsDevTrain.txt").read_text()).pairs) == 2200
    assert len(lfw.parse_pairs((protocol / "pairsDevTest.txt").read_text()).pairs) == 1000


KEYS = [f"{who}/{n}.jpg" for who in "abcd" for n in range(3)]
LABELS = [key[0] for key in KEYS]


# First three mated and non-mated pairs of seed 1, worked out from the digests by a separate script.
PINNED = [
    ("c/0.jpg", "c/2.jpg"),
    ("b/1.jpg", "b/0.jpg"),
    ("a/2.jpg", "a/1.jpg"),
    ("d/1.jpg", "c/0.jpg"),
    ("c/0.jpg", "b/1.jpg"),
    ("b/1.jpg", "a/2.jpg"),
]


def test_folder_sample_is_fixed_and_independent_of_order() -> None:
    sample = folders.sample_pairs(KEYS, LABELS, num_mated=6, num_non_mated=8, seed=1)

    def named(s: folders.PairSample, keys: list[str]) -> list[tuple[str, str]]:
        return [(keys[i], keys[j]) for i, j in zip(s.first, s.second, strict=True)]

    # Pinned: a report that names seed and protocol version can be repeated years later.
    assert named(sample, KEYS)[:3] == PINNED[:3]
    assert named(sample, KEYS)[6:9] == PINNED[3:]
    back = folders.sample_pairs(KEYS[::-1], LABELS[::-1], num_mated=6, num_non_mated=8, seed=1)
    assert named(back, KEYS[::-1]) == named(sample, KEYS)
    other = folders.sample_pairs(KEYS, LABELS, num_mated=6, num_non_mated=8, seed=2)
    assert named(other, KEYS) != named(sample, KEYS)


def test_folder_sample_spreads_mated_pairs_over_identities() -> None:
    sample = folders.sample_pairs(KEYS, LABELS, num_mated=4, num_non_mated=0, seed=3)
    assert sorted(LABELS[i] for i in sample.first) == list("abcd")


def test_folder_sample_can_be_exhaustive_and_not_more() -> None:
    # 4 identities of 3: 12 mated, 66 - 12 = 54 non-mated.
    sample = folders.sample_pairs(KEYS, LABELS, num_mated=12, num_non_mated=54, seed=0)
    assert len({frozenset(p) for p in zip(sample.first.tolist(), sample.second.tolist(), strict=True)}) == 66
    for i, j, mated in zip(sample.first, sample.second, sample.mated, strict=True):
        assert (LABELS[i] == LABELS[j]) == mated
    with pytest.raises(UndefinedMetricError, match="only 12 mated pairs, 13"):
        folders.sample_pairs(KEYS, LABELS, num_mated=13, num_non_mated=1, seed=0)
    with pytest.raises(UndefinedMetricError, match="only 54 non-mated pairs, 55"):
        folders.sample_pairs(KEYS, LABELS, num_mated=1, num_non_mated=55, seed=0)
    with pytest.raises(ConfigError, match="key of its own"):
        folders.sample_pairs(["x", "x"], ["a", "a"], num_mated=1, num_non_mated=0, seed=0)


def test_folder_sample_scores_only_what_it_uses() -> None:
    sample = folders.sample_pairs(KEYS, LABELS, num_mated=1, num_non_mated=1, seed=0)
    embeddings = np.zeros((len(KEYS), 2))
    embeddings[sample.used] = [1.0, 1.0]
    scores = sample.score(embeddings)
    assert scores.mated == pytest.approx([1.0])
    assert scores.non_mated == pytest.approx([1.0])
    assert scores.non_mated_subjects is not None
    assert scores.non_mated_subjects[0, 0] != scores.non_mated_subjects[0, 1]


def test_failure_rates() -> None:
    counts = CaptureCounts(40, 1) + CaptureCounts(60, 4)
    assert counts.rate == 0.05
    with pytest.raises(UndefinedMetricError):
        _ = CaptureCounts(0, 0).rate
    with pytest.raises(ConfigError):
        CaptureCounts(1, 2)
    system = system_rates(fmr=0.01, fnmr=0.02, fta=0.05)
    assert (system.far, system.frr) == pytest.approx((0.0095, 0.069))
    general = generalised_rates(fmr=0.01, fnmr=0.02, fta=0.05, fte=0.1)
    # .1 + .9 * .05 + .9 * .95 * .02 and .9 * .95 * .01
    assert (general.far, general.frr) == pytest.approx((0.00855, 0.1621))
    with pytest.raises(ConfigError, match=r"fta is 1\.5"):
        system_rates(fmr=0.0, fnmr=0.0, fta=1.5)


RECORD = MetricRecord(
    "tar_at_fmr", 0.98, "p", "1", 10, 1000, 2, PROVENANCE,
    threshold=0.4, target_fmr=1e-3, interval=Interval(0.9, 1.0, 0.95, "bootstrap"), details={"achieved_fmr": 1e-3},
)  # fmt: skip


def test_record_survives_json() -> None:
    assert MetricRecord.from_json(RECORD.to_json()) == RECORD
    plain = MetricRecord("eer", 0.1, "p", "1", 1, 1, 0, PROVENANCE)
    assert MetricRecord.from_json(plain.to_json()) == plain
    assert json.loads(RECORD.to_json())["provenance"]["dataset_sha256"] == "0" * 64


@pytest.mark.parametrize("text", ["", "[]", "{", '{"metric": NaN}', "[" * 100_000])
def test_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError):
        MetricRecord.from_json(text)


def test_record_with_wrong_fields_is_refused() -> None:
    data = json.loads(RECORD.to_json())
    for change in ({"valu": 1}, {"num_mated": "10"}, {"num_fte": -1}, {"value": "high"}):
        with pytest.raises(ConfigError):
            MetricRecord.from_json(json.dumps({**data, **change}))
    del data["provenance"]["commit"]
    with pytest.raises(ConfigError, match=r"provenance\.commit"):
        MetricRecord.from_json(json.dumps(data))


def test_record_refuses_nan_and_bad_hash() -> None:
    with pytest.raises(ConfigError, match="finite"):
        MetricRecord("eer", math.nan, "p", "1", 1, 1, 0, PROVENANCE)
    with pytest.raises(ConfigError, match="dataset_sha256"):
        Provenance("d", "beef", "m", "c", "x")
    with pytest.raises(ConfigError, match="range"):
        Interval(0.2, 0.1, 0.95, "x")


def test_dataset_digest_ignores_order_but_nothing_else() -> None:
    files = [("a.jpg", "1" * 64), ("b.jpg", "2" * 64)]
    assert dataset_digest(files) == dataset_digest(files[::-1])
    assert dataset_digest(files) != dataset_digest([("a.jpg", "2" * 64), ("b.jpg", "1" * 64)])
    assert len(dataset_digest([])) == 64
