"""Figures of several runs side by side: progress with bands, error curves with bands, angles, weightings, maps."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import plotly.graph_objects as go

from mien.errors import ConfigError
from simulation.pages.figures import (
    MAX_RATE,
    SERIES,
    NamedCurve,
    Role,
    det_figure,
    finish,
    label_lines,
    line_of,
    probit,
)
from simulation.runs.study import estimate

_SYMBOLS: Final = ("circle", "square", "diamond", "cross", "triangle-up", "star", "x", "hexagon", "pentagon", "bowtie")


@dataclass(frozen=True)
class Band:
    """One series: means at `x`, and between which values they lie; without ends where there is one value only."""

    name: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.mean) or len(self.low) != len(self.high) or len(self.low) not in (0, len(self.x)):
            raise ConfigError(f"series {self.name!r} does not have one value for each place")


@dataclass(frozen=True)
class CurveBand:
    """An error curve with the interval of its false non-match rate at some false match rates."""

    curve: NamedCurve
    fmr: tuple[float, ...] = field(default=(), repr=False)
    low: tuple[float, ...] = field(default=(), repr=False)
    high: tuple[float, ...] = field(default=(), repr=False)


def bands_figure(bands: Sequence[Band], *, x_title: str, y_title: str, percent: bool) -> go.Figure:
    """Return each series' mean as a line in a band; at most as many series as can be told apart."""
    _few(bands)
    figure = go.Figure()
    factor, unit = (100.0, " %") if percent else (1.0, "")
    for role, band in zip(SERIES, bands, strict=False):
        if band.low:
            _fill(figure, role, band.x, [v * factor for v in band.low], [v * factor for v in band.high])
    for role, band in zip(SERIES, bands, strict=False):
        figure.add_scatter(
            x=band.x,
            y=[value * factor for value in band.mean],
            hovertemplate=f"{html.escape(x_title).lower()} %{{x}}<br>%{{y:.3g}}{unit}",
            **{**line_of(band.name, role), "mode": "lines+markers", "marker": {"size": 5}},
        )
    last = max(max(band.x, default=0.0) for band in bands)
    figure.update_xaxes(title=x_title, dtick=max(1, -(-int(last) // 8)))
    figure.update_yaxes(title=y_title + (", %" if percent else ""), rangemode="tozero")
    return _with_legend(figure, [band.name for band in bands], 340)


def band_of(name: str, runs: Sequence[Mapping[float, float]]) -> Band:
    """Return the mean over runs and its t-interval at every place that all runs have."""
    places = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    found = [estimate([run[x] for run in runs]) for x in places]
    each = [e for e in found if e is not None]
    low = tuple(max(0.0, e.low) for e in each if e.low is not None)  # neither a rate nor a loss is less
    high = tuple(e.high for e in each if e.high is not None)
    return Band(name, tuple(places), tuple(e.mean for e in each), low, high)


def det_bands_figure(curves: Sequence[CurveBand]) -> go.Figure:
    """Return error curves in probits, each in the band of its interval; raises as `det_figure`."""
    _few(curves)
    figure = det_figure([each.curve for each in curves])
    for each in curves:
        inside = [i for i, v in enumerate(each.fmr) if 0 < each.low[i] <= each.high[i] < MAX_RATE and 0 < v < MAX_RATE]
        if inside:
            x = probit(np.array([each.fmr[i] for i in inside]))
            low, high = (probit(np.array([side[i] for i in inside])) for side in (each.low, each.high))
            _fill(figure, each.curve.role, tuple(x), list(low), list(high))
    return _with_legend(figure, [*(each.curve.name for each in curves), "FMR = FNMR"], 420)


def angles_figure(counts: Mapping[str, Sequence[int]], edges: Sequence[float]) -> go.Figure:
    """Return the distributions of angles in degrees, as shares of all pairs (FedGC, Figure 3)."""
    _few(counts)
    figure = go.Figure()
    used = [i for i in range(len(edges) - 1) if any(each[i] for each in counts.values())]
    for role, (name, each) in zip(SERIES, counts.items(), strict=False):
        share = np.array(each) / max(1, sum(each)) * 100
        figure.add_scatter(
            x=list(edges),
            y=[*share, 0.0],
            fill="tozeroy",
            hovertemplate="from %{x:.0f}\u00b0<br>%{y:.2f} % of pairs",
            **{**line_of(name, role), "line": {"shape": "hv", "width": 1.5}},
        )
    ends = [edges[used[0]], edges[used[-1] + 1]] if used else [0.0, 180.0]
    figure.update_xaxes(title="Angle, \u00b0")
    figure.update_xaxes(range=[max(0.0, ends[0] - 4), min(180.0, ends[1] + 4)])
    figure.update_yaxes(title="% of pairs", rangemode="tozero")
    return _with_legend(figure, list(counts), 340)


def weights_figure(weights: Mapping[str, Sequence[tuple[int, float]]]) -> go.Figure:
    """Return each client's share of the weighting by round (federated validation, Figure 6)."""
    bands = [
        Band(name, tuple(float(r) for r, _ in each), tuple(w for _, w in each))
        for name, each in sorted(weights.items())
    ]
    return bands_figure(bands, x_title="Round", y_title="Weight", percent=True)


def map_figure(points: Sequence[Sequence[float]], people: Sequence[int]) -> go.Figure:
    """Return two coordinates an image, one mark a person."""
    figure = go.Figure()
    for number in sorted(set(people)):
        own = [points[i] for i, owner in enumerate(people) if owner == number]
        figure.add_scatter(
            x=[x for x, _ in own],
            y=[y for _, y in own],
            name=f"person {number + 1}",
            mode="markers",
            marker={"size": 8, "symbol": _SYMBOLS[number % len(_SYMBOLS)]},
            meta={"role": SERIES[number % len(SERIES)]},
            hovertemplate=f"person {number + 1}",
            showlegend=False,
        )
    figure.update_xaxes(showticklabels=False, ticks="", title="first direction")
    figure.update_yaxes(showticklabels=False, title="second direction")
    return finish(figure, height=400, header=12)


def _fill(figure: go.Figure, role: Role, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
    figure.add_scatter(
        x=[*x, *reversed(x)],
        y=[*high, *reversed(low)],
        fill="toself",
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        meta={"role": role},
    )


def _few(series: Sequence[object] | Mapping[str, object]) -> None:
    if not 1 <= len(series) <= len(SERIES):
        raise ConfigError(f"a figure shows 1 to {len(SERIES)} series, not {len(series)}; choose some")


def _with_legend(figure: go.Figure, names: Sequence[str], body: int) -> go.Figure:
    """Return the figure with room for a legend whose entries stand below each other on a narrow screen."""
    lines = sum(len(label_lines(name)) for name in names)
    header = 24 + 20 * lines
    finish(figure, height=body + header, header=header)
    figure.update_layout(legend={"y": 1 + 8 / body})  # just above the plot, however many rows it takes
    return figure
