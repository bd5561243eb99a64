"""Figures of a report: error curves, score distributions and progress over rounds, as plotly figures.

Figures hold data and structure only. Colours come when a page is shown: each trace names its `role`, and the page's
script gives the role the colour that suits a light or dark screen (`assets/report.js`). Names from outside are escaped,
because plotly reads a subset of HTML in labels.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation import Comparisons, DetCurve, ScoreHistogram

Role = Literal[
    "before", "after", "mated", "non_mated", "guide",
    "series_1", "series_2", "series_3", "series_4", "series_5", "series_6", "series_7", "series_8",
]  # fmt: skip
SERIES: Final[tuple[Role, ...]] = (
    "series_1", "series_2", "series_3", "series_4", "series_5", "series_6", "series_7", "series_8",
)  # fmt: skip
"""Roles of things side by side: as many as can be told apart."""

# What a colour says must be visible without it, too.
DASHES: Final[dict[Role, str]] = {
    "before": "dash",
    "after": "solid",
    "mated": "solid",
    "non_mated": "solid",
    "guide": "dot",
    "series_1": "solid",
    "series_2": "dash",
    "series_3": "dot",
    "series_4": "dashdot",
    "series_5": "longdash",
    "series_6": "longdashdot",
    "series_7": "solid",
    "series_8": "dash",
}
_MAX_POINTS: Final = 400
_FOOT: Final = 48
_LABEL_CHARACTERS: Final = 30
MAX_RATE: Final = 0.8
# Ticks of a wide axis; a narrow one, which would show fewer than four of them, takes the fine ones.
_PROBIT_TICKS: Final = (1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
_FINE_TICKS: Final = tuple(d * 10.0**e for e in range(-6, -2) for d in (1, 2, 3, 5, 7)) + tuple(
    i / 100 for i in (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80)
)
_HISTOGRAM_BINS: Final = 80


@dataclass(frozen=True)
class NamedCurve:
    """One model's error curve, as a figure shows it."""

    name: str
    curve: DetCurve = field(repr=False)
    role: Role


@dataclass(frozen=True)
class NamedScores:
    """One model's comparisons, as a figure shows them, with the threshold that is drawn, if any."""

    name: str
    comparisons: Comparisons = field(repr=False)
    threshold: float | None = None


@dataclass(frozen=True)
class NamedSeries:
    """One figure per round: `values` belong to `rounds`; round 0 is the model before training."""

    name: str
    rounds: tuple[int, ...]
    values: tuple[float, ...]
    role: Role

    def __post_init__(self) -> None:
        if len(self.rounds) != len(self.values):
            raise ConfigError(f"series {self.name!r} has {len(self.rounds)} rounds and {len(self.values)} values")


def det_figure(curves: Sequence[NamedCurve]) -> go.Figure:
    """Return the DET figure: FNMR over FMR, both axes in probits, so that normal scores give straight lines.

    Rates of exactly 0 lie at infinity there and are left out, so a curve ends at what its counts can resolve; so are
    rates of 80 % and more, where nobody operates. Raises UndefinedMetricError if nothing is left, as when two sets of
    scores do not overlap at all.
    """
    figure = go.Figure()
    x_ends, y_ends = ProbitRange(), ProbitRange()
    for named in curves:
        index = thin(named.curve)
        inside = [k for k in index if 0 < named.curve.fmr[k] < MAX_RATE and 0 < named.curve.fnmr[k] < MAX_RATE]
        fmr, fnmr = named.curve.fmr[inside], named.curve.fnmr[inside]
        x, y = probit(fmr), probit(fnmr)
        x_ends, y_ends = x_ends.with_values(x), y_ends.with_values(y)
        figure.add_scatter(
            x=x,
            y=y,
            customdata=np.stack([fmr * 100, fnmr * 100, named.curve.thresholds[inside]], axis=1),
            hovertemplate="FMR %{customdata[0]:.3g} %<br>FNMR %{customdata[1]:.3g} %<br>threshold %{customdata[2]:.3f}",
            **line_of(named.name, named.role),
        )
    if x_ends.low > x_ends.high:
        raise UndefinedMetricError(f"no curve has a point with both error rates between 0 and {MAX_RATE:g}: no DET")
    equal = [max(x_ends.low, y_ends.low), min(x_ends.high, y_ends.high)]
    if equal[0] < equal[1]:
        figure.add_scatter(x=equal, y=equal, hoverinfo="skip", **line_of("FMR = FNMR", "guide"))
    figure.update_xaxes(title="False match rate, %", **x_ends.probit_axis())
    figure.update_yaxes(title="False non-match rate, %", **y_ends.probit_axis())
    return finish(figure, height=460)


def roc_figure(curves: Sequence[NamedCurve]) -> go.Figure:
    """Return the ROC figure: true accept rate over FMR on a logarithmic axis, as steps: nothing is interpolated."""
    figure = go.Figure()
    for named in curves:
        index = [k for k in thin(named.curve) if named.curve.fmr[k] > 0]
        figure.add_scatter(
            x=named.curve.fmr[index] * 100,
            y=(1 - named.curve.fnmr[index]) * 100,
            line_shape="vh",
            hovertemplate="FMR %{x:.3g} %<br>TAR %{y:.2f} %",
            **line_of(named.name, named.role),
        )
    figure.update_xaxes(title="False match rate, %", type="log", dtick=1, tickformat="~g")
    figure.update_yaxes(title="True accept rate, %", rangemode="normal")
    return finish(figure, height=420)


def score_figure(models: Sequence[NamedScores]) -> go.Figure:
    """Return the distributions of mated and non-mated scores, one panel per model on one axis of cosines."""
    if not models:
        raise ConfigError("a score figure needs at least one model")
    titles = [html.escape(model.name) for model in models]
    figure = make_subplots(rows=len(models), shared_xaxes=True, vertical_spacing=0.12, subplot_titles=titles)
    for row, model in enumerate(models, 1):
        histogram = ScoreHistogram.of(model.comparisons, _HISTOGRAM_BINS)
        sides: tuple[tuple[Role, str, NDArray[np.int64]], ...] = (
            ("non_mated", "Non-mated", histogram.non_mated),
            ("mated", "Mated", histogram.mated),
        )
        for role, name, counts in sides:
            share = counts / max(1, int(counts.sum())) * 100
            figure.add_scatter(
                x=histogram.edges,
                y=np.append(share, 0.0),
                fill="tozeroy",
                hovertemplate="%{y:.1f} % of comparisons<br>score from %{x:.3f}",
                showlegend=row == 1,
                legendgroup=role,
                row=row,
                col=1,
                **{**line_of(name, role), "line": {"shape": "hv", "width": 1.5}},
            )
        if model.threshold is not None:
            figure.add_vline(x=model.threshold, row=row, col=1, line_width=1, line_dash="dot")
    figure.update_yaxes(title="% of comparisons", rangemode="tozero")
    figure.update_xaxes(title="Score (cosine)", row=len(models), col=1)
    figure.update_xaxes(range=_score_range(models))
    return finish(figure, height=130 + 190 * len(models), header=64)


def rounds_figure(series: Sequence[NamedSeries], *, title: str, percent: bool = True) -> go.Figure:
    """Return progress over rounds; `title` names the measured rate, shown in percent unless told otherwise."""
    figure = go.Figure()
    factor, unit = (100.0, " %") if percent else (1.0, "")
    for one in series:
        figure.add_scatter(
            x=one.rounds,
            y=[value * factor for value in one.values],
            hovertemplate="round %{x}<br>%{y:.2f}" + unit,
            **{**line_of(one.name, one.role), "mode": "lines+markers"},
        )
    untrained = any(0 in one.rounds for one in series)
    figure.update_xaxes(title="Round (0: before training)" if untrained else "Round", dtick=_tick_step(series))
    figure.update_yaxes(title=html.escape(title) + (", %" if percent else ""), rangemode="tozero")
    return finish(figure, height=380 if len(series) > 1 else 350, header=40 if len(series) > 1 else 12)


def line_of(name: str, role: Role) -> dict[str, object]:
    """Return what every line trace has; the role is what the page's script colours by."""
    return {
        "name": "<br>".join(html.escape(line) for line in label_lines(name)),
        "mode": "lines",
        "line": {"width": 1 if role == "guide" else 2.25, "dash": DASHES[role]},
        "meta": {"role": role},
    }


def label_lines(name: str) -> list[str]:
    """Return a name as a legend shows it: in lines that a phone's screen holds."""
    return textwrap.wrap(name, _LABEL_CHARACTERS) or [""]


def finish(figure: go.Figure, *, height: int, header: int = 40) -> go.Figure:
    """Return the figure in the house's layout: no frame, no colours, legend above, nothing that hijacks scrolling.

    Height and the `header` that holds the legend are in pixels.
    """
    body = height - header - _FOOT
    figure.update_layout(
        template="none",
        autosize=True,
        height=height,
        margin={"l": 56, "r": 12, "t": header, "b": _FOOT},
        legend={"orientation": "h", "x": 0, "y": 1 + (header - 32) / body, "xanchor": "left", "yanchor": "bottom"},
        hovermode="closest",
        dragmode=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(zeroline=False, showline=True, ticks="outside", automargin=True, title_standoff=8)
    figure.update_yaxes(zeroline=False, showline=False, automargin=True, title_standoff=8)
    return figure


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


@dataclass(frozen=True)
class ProbitRange:
    """The ends of an axis in probits; empty (low above high) until it has seen values."""

    low: float = math.inf
    high: float = -math.inf

    def with_values(self, values: NDArray[np.float64]) -> ProbitRange:
        """Return the range that holds these values, too."""
        return ProbitRange(min(self.low, *values, math.inf), max(self.high, *values, -math.inf))

    def probit_axis(self) -> dict[str, object]:
        """Return range and ticks; ticks say percent."""
        low, high = self.low - 0.15, self.high + 0.15
        for candidates in (_PROBIT_TICKS, _FINE_TICKS):
            ticks = [t for t in candidates if low <= float(probit(t)) <= high]
            if len(ticks) >= 4:
                break
        return {
            "range": [low, high],
            "tickvals": [float(probit(t)) for t in ticks],
            "ticktext": [f"{t * 100:g}" for t in ticks],
        }


def probit(rates: NDArray[np.float64] | float) -> NDArray[np.float64]:
    normal = NormalDist()
    return np.array([normal.inv_cdf(float(rate)) for rate in np.ravel(rates)]).reshape(np.shape(rates))


def _score_range(models: Sequence[NamedScores]) -> list[float]:
    """Return the axis that shows every score with a little room."""
    scores = np.concatenate([s for m in models for s in (m.comparisons.mated, m.comparisons.non_mated)])
    if not scores.size:
        raise UndefinedMetricError("there are no scores to draw; measure first")
    return [max(-1.0, float(scores.min()) - 0.05), min(1.0, float(scores.max()) + 0.05)]


def _tick_step(series: Sequence[NamedSeries]) -> int:
    last = max((max(one.rounds, default=0) for one in series), default=0)
    return max(1, -(-last // 10))
