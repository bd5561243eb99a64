"""Charts as inline SVG without scripts or styles of their own: classes only, so that a strict policy holds.

Places are in percent of the drawing, whose width follows the page while letters and markers keep their size; curves lie
in a drawing within it that stretches. Colours come from the style sheet, every series has a marker and a dash of its
own for those who do not tell colours apart, and a mark says its numbers to whoever points at it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final, Literal

from markupsafe import Markup, escape

from mien.errors import ConfigError

LEFT, RIGHT, TOP, BOTTOM = 11.0, 96.5, 7.0, 85.0
"""The part of a drawing that data takes, in percent; labels have the rest."""

MAX_SERIES: Final = 8
"""Most series of a chart that colour and dash can tell apart."""

MAX_RATE: Final = 0.8
"""End of probit axes: nobody operates at rates beyond."""

_MAX_MARKERS: Final = 40
_APART: Final = 1.2
"""Distance of marks along a curve of many points, in percent of the drawing."""

_SHAPES: Final = (
    "M0-3.5a3.5 3.5 0 1 1-.01 0z", "M-3.2-3.2h6.4v6.4h-6.4z", "M0-4.6L4.6 0 0 4.6-4.6 0z", "M0-4.4L4.4 3.4h-8.8z",
    "M-1.4-4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z", "M0 4.4L4.4-3.4h-8.8z", "M-4.2-2.4h8.4v4.8h-8.4z",
    "M-2.4-4.2h4.8v8.4h-4.8z", "M-4-4L0-1 4-4V4L0 1-4 4z", "M0-4.6L1.4-1.4 4.6 0 1.4 1.4 0 4.6-1.4 1.4-4.6 0-1.4-1.4z",
)  # fmt: skip
# Marks of a wide probit axis; a narrow one, which would show fewer than four of them, takes the fine ones.
_RATES: Final = (1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
_FINE_RATES: Final = tuple(d * 10.0**e for e in range(-6, -2) for d in (1, 2, 3, 5, 7)) + tuple(
    i / 100 for i in (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80)
)

Point = tuple[float, float]


def probit(rate: float) -> float:
    """Return a rate's distance from one half in standard deviations."""
    return NormalDist().inv_cdf(rate)


_SCALES: Final[dict[str, Callable[[float], float]]] = {"linear": float, "log": math.log10, "probit": probit}


@dataclass(frozen=True)
class Axis:
    """An axis: its ends, marks with their words, and its scale."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    scale: Literal["linear", "log", "probit"] = "linear"

    def place(self, value: float) -> float:
        """Return a value's position, 0 to 1; what is beyond an end lies on it."""
        scaled = _SCALES[self.scale]
        low, high = scaled(self.low), scaled(self.high)
        return (scaled(min(max(value, self.low), self.high)) - low) / ((high - low) or 1.0)


@dataclass(frozen=True)
class Series:
    """A named curve of points, or marks alone. `number` is its colour and dash, 0 for that of its place.

    `steps` says where a step is taken: at the next point, or at this one; `is_filled` shades down to zero. `band` holds
    (x, low, high). `told` is what each point says to whoever points at it. A guide is a bare line.
    """

    name: str
    points: tuple[Point, ...] = field(repr=False)
    is_guide: bool = False
    number: int = 0
    kind: Literal["line", "steps_after", "steps_before", "marks"] = "line"
    is_filled: bool = False
    band: tuple[tuple[float, float, float], ...] = field(default=(), repr=False)
    told: tuple[str, ...] = field(default=(), repr=False)

    def corners(self) -> list[Point]:
        """Return the points that the line goes through, those of its steps included."""
        if self.kind in ("line", "marks"):
            return list(self.points)
        corners = [*self.points[:1]]
        for (x, y), (next_x, next_y) in itertools.pairwise(self.points):
            corners += [(next_x, y) if self.kind == "steps_after" else (x, next_y), (next_x, next_y)]
        return corners


@dataclass(frozen=True)
class Chart:
    """Curves over two axes; `title` names one of several panels, `threshold` is a dotted line at some x."""

    series: tuple[Series, ...]
    x: Axis
    y: Axis
    x_label: str = ""
    y_label: str = ""
    title: str = ""
    threshold: float | None = None

    @property
    def legend(self) -> tuple[tuple[Markup, str], ...]:
        """Return a swatch and a name of each series, where there are several."""
        named = [(_kind(each, n), each.name) for n, each in enumerate(self.series) if each.kind != "marks"]
        return _legend(named)

    @property
    def drawing(self) -> Markup:
        """Return the chart as SVG."""
        parts = [*_grid(self.x, self.y, self.x_label, self.y_label)]
        shapes = [shape for n, each in enumerate(self.series) for shape in self._area(each, _kind(each, n))]
        for n, each in enumerate(self.series):
            if each.kind != "marks":
                shapes += self._curve(each, _kind(each, n))
        parts.append(
            Markup('<svg x="{}%" y="{}%" width="{}%" height="{}%" viewBox="0 0 4000 4000"{}>{}</svg>').format(
                *map(_n, (LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP)),
                Markup(' preserveAspectRatio="none" overflow="visible"'),
                Markup("").join(shapes),
            )
        )
        if self.threshold is not None:
            across = _across(self.x.place(self.threshold))
            parts.append(_line((across, TOP), (across, BOTTOM), "threshold"))
        for n, each in enumerate(self.series):
            parts += self._marks(each, n)
        return _svg(parts)

    def _stretched(self, points: Sequence[Point]) -> str:
        return " ".join(f"{self.x.place(x) * 4000:.0f},{4000 - self.y.place(y) * 4000:.0f}" for x, y in points)

    def _curve(self, series: Series, kind: str) -> Iterator[Markup]:
        """Yield a line for every run of finite points: what is not finite leaves a gap."""
        for is_finite, run in itertools.groupby(series.corners(), _is_finite):
            if is_finite:
                yield Markup('<polyline class="curve {}" points="{}"/>').format(kind, self._stretched(list(run)))

    def _area(self, series: Series, kind: str) -> Iterator[Markup]:
        outline = [(x, low) for x, low, _ in series.band] + [(x, high) for x, _, high in reversed(series.band)]
        if series.is_filled and series.points:
            outline = [(series.points[0][0], 0.0), *series.corners(), (series.points[-1][0], 0.0)]
        if outline:
            yield Markup('<polygon class="area {}" points="{}"/>').format(kind, self._stretched(outline))

    def _marks(self, series: Series, index: int) -> Iterator[Markup]:
        """Yield markers, or where they would run into each other, places that tell their numbers."""
        number = series.number or index + 1
        is_marked = not series.is_guide and series.kind in ("line", "marks") and (
            len(series.points) <= _MAX_MARKERS or series.kind == "marks"
        )  # fmt: skip
        last = (-math.inf, -math.inf)
        for point, words in zip(series.points, series.told or itertools.repeat(""), strict=False):
            if not _is_finite(point):
                continue
            place = (_across(self.x.place(point[0])), _down(self.y.place(point[1])))
            if is_marked:
                yield marker(number, place, words)
            elif words and math.dist(place, last) > _APART:
                last = place
                yield Markup('<circle class="spot" cx="{}%" cy="{}%" r="6"><title>{}</title></circle>').format(
                    _n(place[0]), _n(place[1]), words
                )


@dataclass(frozen=True)
class Bars:
    """Bars side by side, for each label one of every series, (name, values); a label that is empty is not drawn."""

    labels: tuple[str, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]
    y: Axis
    y_label: str = ""
    title: str = ""

    @property
    def legend(self) -> tuple[tuple[Markup, str], ...]:
        """Return a swatch and a name of each series, where there are several."""
        return _legend([(f"s{n % MAX_SERIES + 1}", name) for n, (name, _) in enumerate(self.series)], is_bar=True)

    @property
    def drawing(self) -> Markup:
        """Return the chart as SVG."""
        room = (RIGHT - LEFT) / max(len(self.labels), 1)
        width = room * 0.76 / max(len(self.series), 1)
        parts = [*_grid(Axis(0, 1, ()), self.y, "", self.y_label)]
        zero = _down(self.y.place(0))
        for n, (name, values) in enumerate(self.series):
            for at, value in enumerate(values):
                left, top = LEFT + room * (at + 0.12) + width * n, _down(self.y.place(value))
                told = f"{name} {self.labels[at]}: {value:.4g}".strip() if self.labels[at] else f"{value:.4g}"
                parts.append(
                    Markup('<rect class="bar s{}" x="{}%" y="{}%" width="{}%" height="{}%">{}</rect>').format(
                        n % MAX_SERIES + 1, *map(_n, (left, top, width, zero - top)), _title(told)
                    )
                )
        is_crowded = len("".join(self.labels)) > 40
        for at, label in enumerate(self.labels):
            if label:
                row = BOTTOM + (5.5 + 4.5 * (at % 3) if is_crowded else 8)
                parts.append(_label(LEFT + room * (at + 0.5), row, label, "middle"))
        return _svg(parts)


def linear(values: Sequence[float], *, words: Callable[[float], str] = "{:g}".format, zero: bool = False) -> Axis:
    """Return an axis with round marks that holds all values, and zero where asked for."""
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-12:
        low, high = low - (0 if zero else 0.5), high + (1.0 if zero else 0.5)
    step = _round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((index * step, words(index * step)) for index in range(first, last + 1))
    return Axis(first * step, last * step, ticks)


def shares() -> Axis:
    """Return the axis of shares of a whole, 0 to 1, however little of it they take: half is half on every chart."""
    return Axis(0.0, 1.0, tuple((quarter / 4, f"{quarter * 25}\u202f%") for quarter in range(5)))


def whole_numbers(low: int, high: int) -> Axis:
    """Return an axis over whole numbers such as rounds."""
    if high <= low:
        return Axis(low - 1, low + 1, ((low, str(low)),))
    step = max(1, math.ceil(_round_step((high - low) / 5)))
    marks = [low, *range((low // step + 1) * step, high - step // 2, step), high]
    return Axis(low, high, tuple((mark, str(mark)) for mark in dict.fromkeys(marks)))


def counts(values: Sequence[float]) -> Axis:
    """Return an axis from zero whose marks are whole numbers: there is no half of a phone."""
    high = max([*values, 1.0])
    step = max(1, math.ceil(_round_step(high / 4)))
    last = math.ceil(high / step) * step
    return Axis(0.0, float(last), tuple((float(mark), str(mark)) for mark in range(0, last + 1, step)))


def decades(low: int, high: int, words: Callable[[float], str]) -> Axis:
    """Return a logarithmic axis from 10^low to 10^high."""
    return Axis(10.0**low, 10.0**high, tuple((10.0**n, words(10.0**n)) for n in range(low, high + 1)), "log")


def probits(rates: Sequence[float]) -> Axis:
    """Return an axis in probits that holds all rates with a little room; its marks say percent."""
    normal = NormalDist()
    low, high = (normal.cdf(end) for end in (probit(min(rates)) - 0.15, probit(max(rates)) + 0.15))
    for candidates in (_RATES, _FINE_RATES):
        ticks = tuple((rate, f"{rate * 100:g}") for rate in candidates if low <= rate <= high)
        if len(ticks) >= 4:
            break
    return Axis(low, high, ticks, "probit")


def check_number(series: Sequence[object]) -> None:
    """Raise ConfigError for no series, or more than can be told apart."""
    if not 1 <= len(series) <= MAX_SERIES:
        raise ConfigError(f"a figure shows 1 to {MAX_SERIES} series, not {len(series)}; choose some")


def marker(number: int, place: Point, told: str = "") -> Markup:
    """Return the marker of a series by its number: circle, square, diamond, triangle and others."""
    # A nested drawing is the only way to set a path at a place in percent.
    return Markup(
        '<svg class="at" x="{}%" y="{}%" overflow="visible"><path class="dot s{}" d="{}">{}</path></svg>'
    ).format(
        _n(place[0]), _n(place[1]), (number - 1) % MAX_SERIES + 1, _SHAPES[(number - 1) % len(_SHAPES)], _title(told)
    )


def _kind(series: Series, index: int) -> str:
    return "guide" if series.is_guide else f"s{((series.number or index + 1) - 1) % MAX_SERIES + 1}"


def _legend(named: Sequence[tuple[str, str]], *, is_bar: bool = False) -> tuple[tuple[Markup, str], ...]:
    return tuple((_swatch(kind, is_bar=is_bar), name) for kind, name in named) if len(named) > 1 else ()


def _swatch(kind: str, *, is_bar: bool) -> Markup:
    if is_bar:
        sign = Markup('<rect class="bar {}" width="100%" height="100%"/>').format(kind)
    else:
        sign = Markup('<line class="curve {}" x1="0" y1="50%" x2="100%" y2="50%"/>').format(kind)
        sign += Markup("") if kind == "guide" else marker(int(kind[1:]), (50.0, 50.0))
    return Markup('<svg class="swatch" aria-hidden="true" focusable="false">{}</svg>').format(sign)


def _is_finite(point: Point) -> bool:
    return all(map(math.isfinite, point))


def _title(told: str) -> Markup:
    return Markup("<title>{}</title>").format(told) if told else Markup("")


def _grid(x: Axis, y: Axis, x_label: str, y_label: str) -> Iterator[Markup]:
    for value, words in y.ticks:
        down = _down(y.place(value))
        yield _line((0.0, down), (RIGHT + 1.5, down), "grid")
        yield Markup('<text class="tick" x="0" y="{}%" dy="-3">{}</text>').format(_n(down), escape(words))
    for value, words in x.ticks:
        across = _across(x.place(value))
        yield _line((across, BOTTOM), (across, BOTTOM + 1.5), "grid")
        yield _label(across, BOTTOM + 8, words, "middle")
    for label, down_ in ((x_label, "99%"), (y_label, "10")):
        if label:
            yield Markup('<text class="axis" x="{}%" y="{}" text-anchor="end">{}</text>').format(
                _n(RIGHT + 2), down_, escape(label)
            )


def _label(x: float, y: float, words: str, anchor: str) -> Markup:
    return Markup('<text class="tick" x="{}%" y="{}%" text-anchor="{}">{}</text>').format(
        _n(x), _n(y), anchor, escape(words)
    )


def _line(start: Point, end: Point, kind: str) -> Markup:
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
