"""Evaluation on a fleet of phones: histograms of scores that are only ever added up, and figures from their sum.

A phone compares as it does when it verifies, a picture with a template: each of its pictures with the template of that
person's other pictures (mated), pictures of other people and of public ones with the template (non-mated). It sends
shares of its own comparisons, so that every phone counts alike however many pictures it has: a fleet's TAR is the mean
of its phones' TARs. Their squares are summed too, which gives intervals over phones.

Legend: N pictures, D dimensions, K public pictures, P people, B bins, n phones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.contribution import Lane
from mien.errors import CorruptDataError, UndefinedMetricError
from mien.evaluation.gates import is_measurable
from mien.evaluation.intervals import student_t
from mien.evaluation.rollout_spec import FleetGates
from mien.evaluation.scores import Comparisons, ScoreHistogram

Floats = NDArray[np.float64]

MOST_MATED: Final = 100
MOST_NON_MATED: Final = 10_000
"""Most comparisons that a phone reports."""
TARGETS: Final = (1e-1, 1e-2, 1e-3, 1e-4)
FAILED: Final = -1.0
"""The score of a picture that the model gives no usable embedding: it matches nobody."""
_DECIMALS: Final = 9
"""Of a histogram that is kept: finer than what a phone's share in the largest cohort is rounded to."""
_TOLERANCE: Final = 1e-3
"""Largest deviation of a sum from that of honest phones, for each phone: rounding is far smaller."""


# On a phone


def phone_comparisons(emb_ND: ArrayLike, label_N: NDArray[np.int64], public_KD: ArrayLike) -> Comparisons:
    """Return a phone's comparisons of pictures with templates.

    `emb_ND` are the embeddings of its people's pictures, `label_N` whose each is, `public_KD` those of public people.
    A person with one picture has no mated comparison, but a template all the same. What the model gives no usable
    embedding scores -1.
    """
    own_ND, public = _unit(emb_ND), _unit(public_KD)
    mated, non_mated = [np.zeros(0)], [np.zeros(0)]
    for person in np.unique(label_N):
        mine = own_ND[label_N == person]
        mean_D = mine.sum(axis=0)
        template_D = _unit(mean_D[None])[0]
        if len(mine) > 1:
            mated.append(_scores(mine, _unit(mean_D - mine)))
        for others in (own_ND[label_N != person], public):
            non_mated.append(_scores(others, template_D[None]))
    return Comparisons(np.concatenate(mated), np.concatenate(non_mated))


def _unit(emb_ND: ArrayLike) -> Floats:
    """Return embeddings of length 1; all zeros for what has no direction."""
    exact = np.asarray(emb_ND, np.float64)
    exact = np.where(np.isfinite(exact).all(axis=1, keepdims=True), exact, 0.0)
    norm_N1 = np.linalg.norm(exact, axis=1, keepdims=True)
    unit: Floats = np.where(norm_N1 > 1e-6, exact / np.maximum(norm_N1, 1e-6), 0.0)
    return unit


def _scores(probe_ND: Floats, template_ND: Floats) -> Floats:
    usable = probe_ND.any(axis=1) & template_ND.any(axis=1)
    scores: Floats = np.where(usable, np.clip((probe_ND * template_ND).sum(axis=1), -1.0, 1.0), FAILED)
    return scores


def lanes(bins: int, *, is_paired: bool) -> tuple[Lane, ...]:
    """Return a phone's addends for one model, or for two of which the second is the reference."""
    own = [
        Lane(f"{prefix}{name}", size)
        for prefix in _prefixes(is_paired)
        for name, size in (
            ("mated", bins),
            ("non_mated", bins),
            ("mated_squares", bins),
            ("non_mated_squares", bins),
            ("at_threshold", 4),
        )
    ]
    return (*own, Lane("phones", 2), Lane("comparisons", 2), *((Lane("difference", 4),) if is_paired else ()))


def norm_bound(bins: int, *, is_paired: bool) -> float:
    """Return a bound on the L2 norm of what one phone adds: shares sum to 1, all other numbers are 1 at most."""
    models = 2 if is_paired else 1
    return math.sqrt(models * (2 + 2 * bins + 4) + 4 + (4 if is_paired else 0))


def addends(
    compared: Sequence[Comparisons], thresholds: Sequence[float], *, bins: int
) -> dict[str, NDArray[np.float32]]:
    """Return a phone's addends for a model and, where two are given, its reference, each at its own threshold."""
    told: dict[str, Floats] = {}
    accepted = []
    for prefix, scores, threshold in zip(_prefixes(len(compared) > 1), compared, thresholds, strict=False):
        histogram = ScoreHistogram.of(scores, bins)
        tar, fmr = _share(scores.mated, threshold), _share(scores.non_mated, threshold)
        for name, counts in (("mated", histogram.mated), ("non_mated", histogram.non_mated)):
            told[prefix + name] = counts / max(int(counts.sum()), 1)
            told[f"{prefix}{name}_squares"] = _from_above(told[prefix + name]) ** 2
        told[prefix + "at_threshold"] = np.array([tar, tar**2, fmr, fmr**2])
        accepted.append((tar, fmr))
    first = compared[0]
    told["phones"] = np.array([first.num_mated > 0, first.num_non_mated > 0], np.float64)
    told["comparisons"] = np.array(
        [min(first.num_mated, MOST_MATED) / MOST_MATED, min(first.num_non_mated, MOST_NON_MATED) / MOST_NON_MATED]
    )
    if len(accepted) > 1:
        (tar, fmr), (tar_before, fmr_before) = accepted
        change, rise = tar - tar_before, fmr - fmr_before
        told["difference"] = np.array([change, change**2, rise, rise**2])
    return {name: values.astype(np.float32) for name, values in told.items()}


def _prefixes(is_paired: bool) -> tuple[str, ...]:
    return ("", "reference_") if is_paired else ("",)


def _share(scores: NDArray[np.floating], threshold: float) -> float:
    return float((scores >= threshold).mean()) if scores.size else 0.0


def _from_above(shares_B: Floats) -> Floats:
    """Return the share that lies at or above each bin's lower edge."""
    total: Floats = shares_B[::-1].cumsum()[::-1]
    return total


# What the sum says


@dataclass(frozen=True)
class Estimate:
    """A mean over phones, with the 95 % interval of a mean of so many phones drawn at random (Student's t)."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class FleetPoint:
    """TAR at a false match rate that the fleet can measure: the lowest bin's edge with no more false matches."""

    target_fmr: float
    threshold: float
    fmr: float
    tar: Estimate


@dataclass(frozen=True)
class FleetMonitors:
    """Signs of collapse: the mean cosine of different people, and how many directions embeddings use.

    `effective_dimension` is 1 / E[s^2] over non-mated scores s: tr(M)^2 / tr(M^2), M the embeddings' second moment.
    """

    mean_non_mated: float
    effective_dimension: float


@dataclass(frozen=True)
class ModelFigures:
    """One model on the fleet; `tar` and `fmr` are at `threshold`, `mated` and `non_mated` mean shares in each bin."""

    threshold: float
    tar: Estimate
    fmr: Estimate
    eer: float
    points: tuple[FleetPoint, ...]
    monitors: FleetMonitors
    mated: tuple[float, ...] = field(repr=False)
    non_mated: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class FleetFigures:
    """A fleet's figures for a model and, where it compared two, for the reference and the difference.

    `num_phones` are in the sum, `num_mated_phones` had a mated comparison. `tar_drop` and `fmr_rise` are means of the
    phones' own differences at the two models' own thresholds.
    """

    num_phones: int
    num_mated_phones: int
    num_mated: int
    num_non_mated: int
    model: ModelFigures
    reference: ModelFigures | None = None
    tar_drop: Estimate | None = None
    fmr_rise: Estimate | None = None


Sums = Mapping[str, Floats]


def check_sums(sums: Sums, num_phones: int) -> None:
    """Raise CorruptDataError for a sum that the histograms of `num_phones` phones cannot have.

    It finds a phone that lied without care; one that knows these rules can stay within them.
    """
    slack = _TOLERANCE * max(num_phones, 1)
    phones = {"mated": float(sums["phones"][0]), "non_mated": float(sums["phones"][1])}
    if not all(-slack <= count <= num_phones + slack for count in phones.values()):
        raise _impossible("phones")
    for prefix in _prefixes("reference_mated" in sums):
        for kind, count in phones.items():
            shares_B, squares_B = sums[prefix + kind], sums[f"{prefix}{kind}_squares"]
            if shares_B.min() < -slack or abs(float(shares_B.sum()) - count) > slack:
                raise _impossible(prefix + kind)
            _check_squares(_from_above(shares_B), squares_B, count, slack, prefix + kind)
        at = sums[prefix + "at_threshold"]
        _check_squares(at[[0]], at[[1]], phones["mated"], slack, prefix + "at_threshold")
        _check_squares(at[[2]], at[[3]], phones["non_mated"], slack, prefix + "at_threshold")
    if not all(-slack <= value <= num_phones + slack for value in sums["comparisons"]):
        raise _impossible("comparisons")
    if "difference" in sums:
        at = sums["difference"]
        for first, second in ((0, 1), (2, 3)):
            if not (abs(at[first]) <= num_phones + slack and _is_spread(at[first], at[second], num_phones, slack)):
                raise _impossible("difference")


def _check_squares(sum_B: Floats, squares_B: Floats, count: float, slack: float, what: str) -> None:
    """Raise CorruptDataError unless `count` numbers from 0 to 1 can have that sum and that sum of squares."""
    within = (squares_B >= -slack) & (squares_B <= sum_B + slack) & (sum_B <= count + slack)
    if not (within & (sum_B**2 <= count * squares_B + slack * (1 + 2 * count))).all():
        raise _impossible(what)


def _is_spread(total: float, squares: float, count: float, slack: float) -> bool:
    return -slack <= squares <= count + slack and total**2 <= count * squares + slack * (1 + 2 * count)


def _impossible(lane: str) -> CorruptDataError:
    return CorruptDataError(
        f"the sum's {lane.replace('_', ' ')} is none that phones' histograms add up to: a phone lied or is broken; "
        "nothing of it is used"
    )


def figures(sums: Sums, num_phones: int, thresholds: Sequence[float]) -> FleetFigures:
    """Return a checked sum's figures; raises UndefinedMetricError where fewer than two phones had mated comparisons."""
    mated, non_mated = (round(float(count)) for count in sums["phones"])
    if min(mated, non_mated) < 2:
        raise UndefinedMetricError(
            f"{mated} phones had two pictures of a person and {non_mated} had others to compare with; figures of a "
            "fleet need two phones or more of each: raise cohort.min_reports"
        )
    made = sums["comparisons"]
    num_non_mated = round(float(made[1]) * MOST_NON_MATED)
    found = [
        _model_figures(sums, prefix, (mated, non_mated), threshold, num_non_mated)
        for prefix, threshold in zip(_prefixes(len(thresholds) > 1), thresholds, strict=True)
    ]
    common = (num_phones, mated, round(float(made[0]) * MOST_MATED), num_non_mated, found[0])
    if len(found) == 1:
        return FleetFigures(*common)
    change, rise = sums["difference"][:2], sums["difference"][2:]
    return FleetFigures(
        *common,
        reference=found[1],
        tar_drop=estimate(-float(change[0]), float(change[1]), mated),
        fmr_rise=estimate(float(rise[0]), float(rise[1]), non_mated),
    )


def _model_figures(
    sums: Sums, prefix: str, phones: tuple[int, int], threshold: float, num_non_mated: int
) -> ModelFigures:
    num_mated, num_others = phones
    mated_B = np.maximum(sums[prefix + "mated"], 0.0) / num_mated
    non_mated_B = np.maximum(sums[prefix + "non_mated"], 0.0) / num_others
    at = [float(value) for value in sums[prefix + "at_threshold"]]
    return ModelFigures(
        threshold=threshold,
        tar=estimate(at[0], at[1], num_mated),
        fmr=estimate(at[2], at[3], num_others),
        eer=equal_error_rate_of(mated_B, non_mated_B),
        points=_points(sums, prefix, num_mated, non_mated_B, num_non_mated),
        monitors=_monitors(non_mated_B),
        mated=tuple(round(float(share), _DECIMALS) for share in mated_B),
        non_mated=tuple(round(float(share), _DECIMALS) for share in non_mated_B),
    )


def _points(sums: Sums, prefix: str, num_mated: int, non_mated_B: Floats, num_non_mated: int) -> tuple[FleetPoint, ...]:
    """Return the operating points at the false match rates that so many comparisons can measure."""
    bins, fmr_B = len(non_mated_B), _from_above(non_mated_B)
    tar_B, squares_B = _from_above(sums[prefix + "mated"]), sums[prefix + "mated_squares"]
    points = []
    for target in TARGETS:
        within = np.flatnonzero(fmr_B <= target * (1 + _TOLERANCE))
        if not is_measurable(target, num_non_mated) or not within.size:
            continue
        b = int(within[0])
        tar = estimate(float(tar_B[b]), float(squares_B[b]), num_mated)
        points.append(FleetPoint(target, -1 + 2 * b / bins, float(fmr_B[b]), tar))
    return tuple(points)


def equal_error_rate_of(mated_B: Floats, non_mated_B: Floats) -> float:
    """Return the crossing of FMR and FNMR, on straight lines between bins' edges; shares sum to 1 each."""
    fmr = np.append(_from_above(non_mated_B), 0.0)
    fnmr = 1 - np.append(_from_above(mated_B), 0.0)
    after = int(np.argmax(fnmr >= fmr))
    if after == 0:
        return float(fmr[0] + fnmr[0]) / 2
    above, below = fmr[after - 1] - fnmr[after - 1], fnmr[after] - fmr[after]
    share = above / (above + below) if above + below > 0 else 0.0
    return float(fmr[after - 1] + share * (fmr[after] - fmr[after - 1]))


def _monitors(non_mated_B: Floats) -> FleetMonitors:
    bins = len(non_mated_B)
    middle_B = -1 + (2 * np.arange(bins) + 1) / bins
    total = float(non_mated_B.sum())
    square = float((non_mated_B * middle_B**2).sum()) / total
    # Scores that fill a bin evenly lie 1/12 of its width squared around its middle.
    return FleetMonitors(float((non_mated_B * middle_B).sum()) / total, 1 / (square + 1 / (3 * bins**2)))


def estimate(total: float, squares: float, count: int) -> Estimate:
    """Return the mean of `count` phones' numbers with that sum and that sum of squares, and its 95 % interval."""
    mean = total / count
    variance = max(squares - count * mean**2, 0.0) / (count - 1)
    half = student_t(count - 1) * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half)


# Gates


def judge_fleet(gates: FleetGates, found: FleetFigures) -> tuple[str, ...]:
    """Return all reasons against a model which phones compared with the one before it, in words.

    What is uncertain is no reason: rates are compared by the side of their interval that speaks for the model.
    """
    before, drop = found.reference, found.tar_drop
    if before is None or drop is None:
        return ("phones compared it with no other model",)
    model, reasons = found.model, []
    allowed = allowed_drop(gates, drop)
    if not drop.value <= allowed:
        reasons.append(
            f"phones accept their owners less often: TAR {model.tar.value:.4f} at its threshold, with the model before "
            f"{before.tar.value:.4f}; a drop of {allowed:.4f} is allowed"
        )
    limit = gates.max_fmr_ratio * max(gates.fmr, before.fmr.value)
    if not model.fmr.low <= limit:
        reasons.append(
            f"phones take more strangers for their owners: FMR {model.fmr.value:.4f} at its threshold, with the model "
            f"before {before.fmr.value:.4f}; {limit:.4f} is allowed"
        )
    rise = model.monitors.mean_non_mated - before.monitors.mean_non_mated
    if not rise <= gates.max_cosine_rise:
        reasons.append(
            f"different people have become more alike: their mean cosine is {model.monitors.mean_non_mated:.3f}, with "
            f"the model before {before.monitors.mean_non_mated:.3f}"
        )
    least = gates.min_rank_share * before.monitors.effective_dimension
    if not model.monitors.effective_dimension >= least:
        reasons.append(
            f"embeddings have collapsed: they use {model.monitors.effective_dimension:.1f} directions, with the model "
            f"before {before.monitors.effective_dimension:.1f}"
        )
    return tuple(reasons)


def allowed_drop(gates: FleetGates, drop: Estimate) -> float:
    """Return the drop of TAR that is put up with: `delta`, what chance among phones explains, or the larger."""
    if gates.tolerance == "delta":
        return gates.delta
    return drop.half_width if gates.tolerance == "interval" else max(gates.delta, drop.half_width)
