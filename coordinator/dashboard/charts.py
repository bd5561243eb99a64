"""Drawings as inline SVG without scripts or styles of their own: classes only, so that a strict policy holds.

All places are in percent of the drawing, whose width follows the page while letters keep their size; so curves are
drawn as line after line (SVG knows no percentages in paths). Colours come from the style sheet, and every series has a
marker and a dash of its own, for those who do not tell colours apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

LEFT, RIGHT, TOP, BOTTOM = 11.0, 96.5, 7.0, 85.0
"""The part of a drawing that data takes, in percent; labels have the rest."""

MAX_SERIES: Final = 4
_MAX_MARKERS: Final = 40


@dataclass(frozen=True)
class Axis:
    """An axis: its ends, marks with their words, and whether it is logarithmic."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, 0 to 1; what is beyond an end lies on it."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0)


@dataclass(frozen=True)
class Series:
    """A named curve: (x, y), in order of x. A guide is a bare line without markers."""

    name: str
    points: tuple[tuple[float, float], ...]
    is_guide: bool = False


def linear(values: Sequence[float], *, words: Callable[[float], str], zero: bool = False, num_ticks: int = 4) -> Axis:
    """Return an axis with round marks that holds all values, and zero where asked for."""
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-12:
        low, high = low - (0 if zero else 0.5), high + (1.0 if zero else 0.5)
    step = _round_step((high - low) / num_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((index * step, words(index * step)) for index in range(first, last + 1))
    return Axis(first * step, last * step, ticks)


def whole_numbers(low: int, high: int, *, num_ticks: int = 5) -> Axis:
    """Return an axis over whole numbers such as rounds."""
    if high <= low:
        return Axis(low - 1, low + 1, ((low, str(low)),))
    step = max(1, math.ceil(_round_step((high - low) / num_ticks)))
    marks = [low, *range((low // step + 1) * step, high - step // 2, step), high]
    return Axis(low, high, tuple((mark, str(mark)) for mark in dict.fromkeys(marks)))


def decades(low: int, high: int, words: Callable[[float], str]) -> Axis:
    """Return a logarithmic axis from 10^low to 10^high."""
    return Axis(10.0**low, 10.0**high, tuple((10.0**n, words(10.0**n)) for n in range(low, high + 1)), is_log=True)


def lines(series: Sequence[Series], x: Axis, y: Axis, *, x_label: str, y_label: str) -> Markup:
    """Return curves over two axes."""
    parts = [*_grid(x, y, x_label, y_label)]
    for index, each in enumerate(series):
        places = [(_across(x.place(a)), _down(y.place(b))) for a, b in each.points]
        name = "guide" if each.is_guide else f"s{index % MAX_SERIES + 1}"
        parts += [_line(start, end, f"curve {name}") for start, end in itertools.pairwise(places)]
        if not each.is_guide and len(places) <= _MAX_MARKERS:
            parts += [marker(index % MAX_SERIES, place) for place in places]
    return _svg(parts)


def bars(values: Sequence[float], labels: Sequence[str], y: Axis, *, y_label: str) -> Markup:
    """Return bars side by side; a label that is empty is not drawn."""
    width = (RIGHT - LEFT) / max(len(values), 1)
    axis = Axis(0, 1, ())
    parts = [*_grid(axis, y, "", y_label)]
    zero = _down(y.place(0))
    for index, value in enumerate(values):
        left, top = LEFT + width * index, _down(y.place(value))
        parts.append(
            Markup('<rect class="bar" x="{}%" y="{}%" width="{}%" height="{}%"/>').format(
                _n(left + width * 0.12), _n(top), _n(width * 0.76), _n(zero - top)
            )
        )
        if labels[index]:
            parts.append(_label(left + width / 2, BOTTOM + 8, labels[index], "middle"))
    return _svg(parts)


def marker(index: int, place: tuple[float, float]) -> Markup:
    """Return the marker of a series: circle, square, diamond, triangle."""
    x, y = _n(place[0]), _n(place[1])
    kind = f"s{index + 1}"
    if index == 0:
        return Markup('<circle class="dot {}" cx="{}%" cy="{}%" r="3.5"/>').format(kind, x, y)
    shape = ("", "M-3.2-3.2h6.4v6.4h-6.4z", "M0-4.6L4.6 0 0 4.6-4.6 0z", "M0-4.4L4.4 3.4h-8.8z")[index]
    # A nested drawing is the only way to set a path at a place in percent.
    return Markup('<svg class="at" x="{}%" y="{}%" overflow="visible"><path class="dot {}" d="{}"/></svg>').format(
        x, y, kind, shape
    )


def swatch(index: int) -> Markup:
    """Return a series' line and marker for the legend."""
    line = Markup('<line class="curve s{}" x1="0" y1="50%" x2="100%" y2="50%"/>').format(index + 1)
    return Markup('<svg class="swatch" aria-hidden="true" focusable="false">{}{}</svg>').format(
        line, marker(index, (50.0, 50.0))
    )


def _grid(x: Axis, y: Axis, x_label: str, y_label: str) -> Iterator[Markup]:
    for value, words in y.ticks:
        down = _down(y.place(value))
        yield _line((0.0, down), (RIGHT + 1.5, down), "grid")
        yield Markup('<text class="tick" x="0" y="{}%" dy="-3">{}</text>').format(_n(down), escape(words))
    for value, words in x.ticks:
        across = _across(x.place(value))
        yield _line((across, BOTTOM), (across, BOTTOM + 1.5), "grid")
        yield _label(across, BOTTOM + 8, words, "middle")
    if x_label:
        yield Markup('<text class="axis" x="{}%" y="99%" text-anchor="end">{}</text>').format(
            _n(RIGHT + 2), escape(x_label)
        )
    if y_label:
        yield Markup('<text class="axis" x="{}%" y="10" text-anchor="end">{}</text>').format(
            _n(RIGHT + 2), escape(y_label)
        )


def _label(x: float, y: float, words: str, anchor: str) -> Markup:
    return Markup('<text class="tick" x="{}%" y="{}%" text-anchor="{}">{}</text>').format(
        _n(x), _n(y), anchor, escape(words)
    )


def _line(start: tuple[float, float], end: tuple[float, float], kind: str) -> Markup:
    numbers = (_n(value) for value in (*start, *end))
    return Markup('<line class="{}" x1="{}%" y1="{}%" x2="{}%" y2="{}%"/>').format(kind, *numbers)


def _svg(parts: Sequence[Markup]) -> Markup:
    return Markup('<svg class="chart" aria-hidden="true" focusable="false">{}</svg>').format(Markup("").join(parts))


def _across(share: float) -> float:
    return LEFT + share * (RIGHT - LEFT)


def _down(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _round_step(rough: float) -> float:
    """Return the next larger of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(rough, 1e-300)))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
