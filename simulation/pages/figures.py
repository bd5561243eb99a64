"""Figures of reports: error curves, score distributions, progress over rounds, angles, weightings and maps, as charts.

Charts hold data and structure only; colours come from the style sheet, by the number of a series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation import Comparisons, DetCurve, ScoreHistogram
from mien.shell.pages import Axis, Chart, Figure, Series
from mien.shell.pages.charts import MAX_RATE, check_number, decades, linear, probits, whole_numbers
from simulation.runs.experiment import estimate

AFTER, BEFORE, MATED, NON_MATED = 1, 2, 3, 4
"""Numbers of the series that pages show again and again: one colour each."""

_MAX_POINTS: Final = 400
_HISTOGRAM_BINS: Final = 80


@dataclass(frozen=True)
class NamedCurve:
    """One model's error curve, as a figure shows it, and its band: intervals of FNMR at some FMRs, where known."""

    name: str
    curve: DetCurve = field(repr=False)
    number: int = 0
    fmr: tuple[float, ...] = field(default=(), repr=False)
    low: tuple[float, ...] = field(default=(), repr=False)
    high: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class NamedScores:
    """One model's comparisons, as a figure shows them, with the threshold that is drawn, if any."""

    name: str
    comparisons: Comparisons = field(repr=False)
    threshold: float | None = None


@dataclass(frozen=True)
class Band:
    """One series: means at `x`, and between which values they lie; without ends where there is one value only."""

    name: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    number: int = 0

    def __post_init__(self) -> None:
        if len(self.x) != len(self.mean) or len(self.low) != len(self.high) or len(self.low) not in (0, len(self.x)):
            raise ConfigError(f"series {self.name!r} does not have one value for each place")


def band_of(name: str, runs: Sequence[Mapping[float, float]]) -> Band:
    """Return the mean over runs and its t-interval at every place that all runs have."""
    places = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    each = [e for e in (estimate([run[x] for run in runs]) for x in places) if e is not None]
    low = tuple(max(0.0, e.low) for e in each if e.low is not None)  # neither a rate nor a loss is less
    high = tuple(e.high for e in each if e.high is not None)
    return Band(name, tuple(places), tuple(e.mean for e in each), low, high)


def det_chart(curves: Sequence[NamedCurve]) -> Chart:
    """Return the DET figure: FNMR over FMR, both axes in probits, so that normal scores give straight lines.

    Rates of exactly 0 lie at infinity there and are left out, so a curve ends at what its counts can resolve; so are
    rates of 80 % and more, where nobody operates. Raises UndefinedMetricError if nothing is left, as when two sets of
    scores do not overlap at all.
    """
    check_number(curves)
    series = [_det_series(each) for each in curves]
    points = [point for each in series for point in each.points]
    if not points:
        raise UndefinedMetricError(f"no curve has a point with both error rates between 0 and {MAX_RATE:g}: no DET")
    x, y = probits([fmr for fmr, _ in points]), probits([fnmr for _, fnmr in points])
    low, high = max(x.low, y.low), min(x.high, y.high)
    if low < high:
        series.append(Series("FMR = FNMR", ((low, low), (high, high)), is_guide=True))
    return Chart(tuple(series), x, y, "False match rate, %", "False non-match rate, %")


def det_figure(curves: Sequence[NamedCurve], rest: str, described: str, *, command: str = "") -> Figure:
    """Return the section of error curves; raises as `det_chart`."""
    caption = "False non-matches against false matches for every threshold, both axes in probits; lower left is better."
    if any(each.fmr for each in curves):
        caption += " The bands are 95 % intervals of a bootstrap over people."
    return Figure("det", "Error trade-off", (det_chart(curves),), f"{caption} {rest}", described, command=command)


def _det_series(named: NamedCurve) -> Series:
    curve = named.curve
    inside = [k for k in thin(curve) if 0 < curve.fmr[k] < MAX_RATE and 0 < curve.fnmr[k] < MAX_RATE]
    told = tuple(
        f"FMR {curve.fmr[k] * 100:.3g} %, FNMR {curve.fnmr[k] * 100:.3g} %, threshold {curve.thresholds[k]:.3f}"
        for k in inside
    )
    band = tuple(
        each
        for each in zip(named.fmr, named.low, named.high, strict=True)
        if 0 < each[1] <= each[2] < MAX_RATE and 0 < each[0] < MAX_RATE
    )
    points = tuple((float(curve.fmr[k]), float(curve.fnmr[k])) for k in inside)
    return Series(named.name, points, number=named.number, band=band, told=told)


def roc_chart(curves: Sequence[NamedCurve]) -> Chart:
    """Return the ROC figure: true accept rate over FMR on a logarithmic axis, as steps: nothing is interpolated."""
    series = []
    for named in curves:
        curve = named.curve
        points = tuple((float(curve.fmr[k]), 1 - float(curve.fnmr[k])) for k in thin(curve) if curve.fmr[k] > 0)
        told = tuple(f"FMR {x * 100:.3g} %, TAR {y * 100:.2f} %" for x, y in points)
        series.append(Series(named.name, points, number=named.number, kind="steps_before", told=told))
    lowest = min((x for each in series for x, _ in each.points), default=0.1)
    x_axis = decades(int(np.floor(np.log10(lowest) + 1e-9)), 0, lambda rate: f"{rate * 100:g}")
    y_axis = linear([y for each in series for _, y in each.points], words=_in_percent)
    return Chart(tuple(series), x_axis, y_axis, "False match rate, %", "True accept rate, %")


def score_charts(models: Sequence[NamedScores]) -> tuple[Chart, ...]:
    """Return the distributions of mated and non-mated scores, one panel per model on one axis of cosines."""
    if not models:
        raise ConfigError("a score figure needs at least one model")
    x = _score_axis(models)
    panels = []
    for model in models:
        histogram = ScoreHistogram.of(model.comparisons, _HISTOGRAM_BINS)
        sides = (("Non-mated", NON_MATED, histogram.non_mated), ("Mated", MATED, histogram.mated))
        series = tuple(
            _distribution(name, counts.tolist(), histogram.edges.tolist(), number, "of comparisons, score from {:.3f}")
            for name, number, counts in sides
        )
        y = linear([y for each in series for _, y in each.points], zero=True, words=_in_percent)
        panels.append(Chart(series, x, y, "Score (cosine)", "% of comparisons", model.name, model.threshold))
    return tuple(panels)


def _distribution(name: str, counts: Sequence[int], edges: Sequence[float], number: int, told: str) -> Series:
    """Return counts between edges as steps of their shares, shaded."""
    shares = [count / max(1, sum(counts)) for count in counts] + [0.0]
    words = tuple(f"{share * 100:.2f} % {told.format(edge)}" for edge, share in zip(edges, shares, strict=True))
    points = tuple(zip(edges, shares, strict=True))
    return Series(name, points, number=number, kind="steps_after", is_filled=True, told=words)


def rounds_chart(bands: Sequence[Band], *, title: str, percent: bool = True, x_title: str = "Round") -> Chart:
    """Return each series' mean over rounds as a line in its band; `title` names what was measured."""
    check_number(bands)
    series = []
    for each in bands:
        told = tuple(
            f"{x_title.lower()} {x:g}: {f'{y * 100:.2f} %' if percent else f'{y:.4g}'}"
            for x, y in zip(each.x, each.mean, strict=True)
        )
        band = tuple(zip(each.x, each.low, each.high, strict=True)) if each.low else ()
        points = tuple(zip(each.x, each.mean, strict=True))
        series.append(Series(each.name, points, number=each.number, band=band, told=told))
    places = [x for each in bands for x in each.x] or [0.0]
    values = [value for each in bands for value in (*each.mean, *each.high)]
    y = linear(values, zero=True, words=_in_percent if percent else "{:g}".format)
    if 0 in places and x_title == "Round":
        x_title = "Round (0: before training)"
    x = whole_numbers(int(min(places)), int(np.ceil(max(places))))
    return Chart(tuple(series), x, y, x_title, f"{title}, %" if percent else title)


def weights_chart(weights: Mapping[str, Sequence[tuple[int, float]]]) -> Chart:
    """Return each client's share of the weighting by round (federated validation, Figure 6)."""
    bands = [
        Band(name, tuple(float(r) for r, _ in each), tuple(w for _, w in each))
        for name, each in sorted(weights.items())
    ]
    return rounds_chart(bands, title="Weight")


def angles_figure(found: Mapping[str, Sequence[Mapping[str, Any]]], caption: str) -> Figure:
    """Return the distributions of angles in degrees, as shares of all pairs of a name's records (FedGC, Figure 3)."""
    check_number(list(found))
    counts = {name: np.sum([each["counts"] for each in records], axis=0).tolist() for name, records in found.items()}
    edges = next(iter(found.values()))[0]["edges_deg"]
    used = [i for i in range(len(edges) - 1) if any(each[i] for each in counts.values())]
    ends = (edges[used[0]], edges[used[-1] + 1]) if used else (0.0, 180.0)
    series = tuple(_distribution(name, each, edges, 0, "of pairs, from {:.0f}\u00b0") for name, each in counts.items())
    x = linear([max(0.0, ends[0] - 4), min(180.0, ends[1] + 4)])
    y = linear([y for each in series for _, y in each.points], zero=True, words=_in_percent)
    chart = Chart(series, x, y, "Angle, \u00b0", "% of pairs")
    caption = f"How often each angle lies between the class embeddings of two clients after training, {caption}"
    described = f"Distributions of angles between clients' classes: {', '.join(counts)}."
    return Figure("angles", "Angles between classes", (chart,), f"{caption} Counts of pairs only.", described)


def map_chart(points: Sequence[Sequence[float]], people: Sequence[int]) -> Chart:
    """Return two coordinates an image, one mark a person."""
    series = []
    for person in sorted(set(people)):
        own = tuple((x, y) for (x, y), owner in zip(points, people, strict=True) if owner == person)
        told = (f"person {person + 1}",) * len(own)
        series.append(Series(f"person {person + 1}", own, number=person + 1, kind="marks", told=told))
    axes = [Axis(min(values), max(values), ()) for values in zip(*points, strict=True)]
    return Chart(tuple(series), axes[0], axes[1], "first direction", "second direction")


def thin(curve: DetCurve) -> list[int]:
    """Return at most about 400 indices of a curve, evenly spaced in the logarithm of each error count.

    Small counts, where curves differ most and steps are large, keep every point.
    """
    matches = np.searchsorted(-curve.num_false_matches, -_log_counts(curve.num_non_mated))
    non_matches = np.searchsorted(curve.num_false_non_matches, _log_counts(curve.num_mated))
    last = curve.thresholds.size - 1
    wanted: NDArray[np.int64] = np.unique(np.concatenate([[0, last], matches, non_matches]).astype(np.int64))
    return [int(k) for k in wanted if k <= last]


def _log_counts(total: int) -> NDArray[np.int64]:
    """Return whole numbers from 1 to `total`, evenly spaced in their logarithm."""
    return np.unique(np.geomspace(1, total, _MAX_POINTS // 2).round().astype(np.int64))


def _score_axis(models: Sequence[NamedScores]) -> Axis:
    """Return the axis that shows every score."""
    scores = np.concatenate([s for m in models for s in (m.comparisons.mated, m.comparisons.non_mated)])
    if not scores.size:
        raise UndefinedMetricError("there are no scores to draw; measure first")
    return linear([max(-1.0, float(scores.min()) - 0.05), min(1.0, float(scores.max()) + 0.05)])


def _in_percent(share: float) -> str:
    return f"{share * 100:.6g}"
