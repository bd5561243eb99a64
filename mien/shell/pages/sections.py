"""Sections of a page: typed records of plain text. The template escapes all of it; pages hold no markup."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from markupsafe import Markup

from mien.errors import ConfigError
from mien.shell.pages.charts import Bars, Chart

Tone = Literal["plain", "good", "busy", "warn", "bad"]
MARKS: Final[dict[Tone, str]] = {"plain": "○", "good": "✓", "busy": "◐", "warn": "△", "bad": "✕"}
"""Marks beside a tone's colour, for those who do not see it."""


@dataclass(frozen=True)
class Bar:
    """A bar within its cell: where it starts and how long it is, each a share of the cell's width."""

    length: float
    start: float = 0.0
    tone: Tone = "busy"


@dataclass(frozen=True)
class Cell:
    """One cell: text, where it leads, whether it is a badge (`tone`) or an id (`is_code`), and a second, small line."""

    text: str
    href: str = ""
    tone: Tone | None = None
    is_code: bool = False
    note: str = ""
    bar: Bar | None = None


Cells = tuple[Cell | str, ...]
"""A row; plain text is a cell of that text."""


@dataclass(frozen=True)
class Column:
    """A column's heading; numbers are set flush right."""

    label: str
    numeric: bool = False


@dataclass(frozen=True)
class Section:
    """A section of a page; `anchor` is its id there, so that links and whoever keeps a page up to date find it."""

    anchor: str
    title: str

    @property
    def kind(self) -> str:
        """Name by which the template knows it."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Table(Section):
    """A table; the first cell of a row is its heading. `caption` is read out, and shown in reports.

    `total` is a last row set apart, `note` what the numbers rest on, `command` what gives them again, `details` a
    second table, folded away.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Cells, ...]
    note: str = ""
    total: Cells = ()
    command: str = ""
    details: Table | None = None

    def __post_init__(self) -> None:
        for row in (*self.rows, *((self.total,) if self.total else ())):
            if len(row) != len(self.columns):
                raise ConfigError(f"table {self.title!r} has a row of {len(row)} cells for {len(self.columns)} columns")
        object.__setattr__(self, "rows", tuple(tuple(map(_cell, row)) for row in self.rows))
        object.__setattr__(self, "total", tuple(map(_cell, self.total)))


@dataclass(frozen=True)
class Tile:
    """One figure or decision to take away, what it rests on, and whether it is as it should be."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"
    href: str = ""

    def __post_init__(self) -> None:
        if self.tone not in MARKS:
            raise ConfigError(f"tone is {self.tone!r}; use one of {', '.join(MARKS)}")


@dataclass(frozen=True)
class Tiles(Section):
    """Figures or decisions side by side."""

    items: tuple[Tile, ...]
    intro: str = ""


@dataclass(frozen=True)
class Alert:
    """Alert for an operator: what happened, and what to do about it."""

    tone: Tone
    text: str
    command: str = ""
    href: str = ""
    link: str = ""


@dataclass(frozen=True)
class Alerts(Section):
    """Alerts for an operator, the worst first; `all_well` is said where there are none."""

    items: tuple[Alert, ...]
    all_well: str


@dataclass(frozen=True)
class Facts(Section):
    """Terms and what they are: provenance, settings, where something stands."""

    items: tuple[tuple[str, Cell | str], ...]
    note: str = ""
    intro: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple((term, _cell(what)) for term, what in self.items))


@dataclass(frozen=True)
class Prose(Section):
    """Paragraphs, as a list where there are several points; a notice stands out."""

    paragraphs: tuple[str, ...]
    is_list: bool = False
    is_notice: bool = False


@dataclass(frozen=True)
class Empty(Section):
    """Empty section: why there is nothing yet, and the commands that change that."""

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure(Section):
    """A chart, or panels of one, with what it shows in words, and the same numbers as a table, folded away."""

    charts: tuple[Chart | Bars, ...] = field(repr=False)
    caption: str
    description: str
    table: Table | None = None
    command: str = ""

    @property
    def drawing(self) -> Markup:
        """Return all panels as SVG."""
        return Markup("").join(chart.drawing for chart in self.charts)

    @property
    def legend(self) -> tuple[tuple[Markup, str], ...]:
        """Return the swatch and name of each series, where there are several."""
        return self.charts[0].legend


@dataclass(frozen=True)
class Choice:
    """A field of a filter: free text, or one of `options` (value, words)."""

    name: str
    label: str
    value: str = ""
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Filter(Section):
    """A form that narrows down what follows; it is part of the address, so that it can be kept and shared."""

    action: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Pager(Section):
    """The way to older and newer rows."""

    label: str
    newer: str = ""
    older: str = ""


@dataclass(frozen=True)
class Columns(Section):
    """Sections side by side where there is room."""

    items: tuple[Figure | Table | Facts | Prose | Empty, ...]


@dataclass(frozen=True)
class Page:
    """A whole page: `place` is its entry of the navigation, `trail` the way back to it, `commands` what acts on it."""

    place: str
    title: str
    lede: str
    sections: tuple[Section, ...]
    trail: tuple[tuple[str, str], ...] = ()
    badge: Cell | None = None
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """A page that is a file of its own: one sentence on what was done, sections in order, and the small print."""

    title: str
    lede: str
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()
    language: str = "en"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", self.language):
            raise ConfigError(f"report language is {self.language!r}; use a tag such as 'en'")


def columns(*labels: str) -> tuple[Column, ...]:
    """Return headings; one that begins with # is of numbers."""
    return tuple(Column(label.removeprefix("#"), numeric=label.startswith("#")) for label in labels)


def _cell(what: Cell | str) -> Cell:
    return what if isinstance(what, Cell) else Cell(what)


NOTHING: Final = Cell("–")
"""A cell with nothing to say."""
