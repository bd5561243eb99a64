"""A report as one HTML file that needs nothing else: no network, no fonts, no second file.

Sections are typed records of plain text; everything is escaped by the template, and a content security policy in the
page lets only the two scripts run that are part of it and forbids every request. Size is that of plotly.js (4.8 MB)
plus a few kilobytes; a report without figures leaves plotly.js out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import ClassVar, Final, Literal

import jinja2
import plotly.graph_objects as go
import plotly.io
import plotly.offline
from markupsafe import Markup

from mien.errors import ConfigError

Tone = Literal["plain", "good", "bad"]

_TONES: Final = ("plain", "good", "bad")


@dataclass(frozen=True)
class Headline:
    """One figure that the reader should take away, with what it was before and on what it rests."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"

    def __post_init__(self) -> None:
        _check_tone(self.tone)


@dataclass(frozen=True)
class Headlines:
    """The headline figures, side by side."""

    kind: ClassVar[str] = "headlines"
    items: tuple[Headline, ...]
    title: str = ""


@dataclass(frozen=True)
class Prose:
    """Paragraphs of plain text; a `notice` stands out."""

    kind: ClassVar[str] = "prose"
    title: str
    paragraphs: tuple[str, ...]
    notice: bool = False


@dataclass(frozen=True)
class Facts:
    """Terms and what they are: provenance, settings, what left a phone."""

    kind: ClassVar[str] = "facts"
    title: str
    items: tuple[tuple[str, str], ...]
    intro: str = ""


@dataclass(frozen=True)
class Column:
    """A column's heading; numeric columns are set flush right in tabular figures."""

    label: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table: the first cell of each row is its heading; `total` is a last row set apart.

    `command` is what gives these numbers again, `note` what they rest on, `details` a second table, folded away.
    """

    kind: ClassVar[str] = "table"
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...] = ()
    note: str = ""
    command: str = ""
    details: Table | None = None

    def __post_init__(self) -> None:
        for row in (*self.rows, *((self.total,) if self.total else ())):
            if len(row) != len(self.columns):
                raise ConfigError(f"table {self.title!r} has a row of {len(row)} cells for {len(self.columns)} columns")


@dataclass(frozen=True)
class Figure:
    """A figure with its caption, and `description`: what it shows, in words, for those who cannot see it.

    `data` is the same as a table, folded away.
    """

    kind: ClassVar[str] = "figure"
    title: str
    figure: go.Figure = field(repr=False)
    caption: str
    description: str
    data: Table | None = None
    command: str = ""


@dataclass(frozen=True)
class Outcome:
    """Who asked, what the phone decided, and why: one card."""

    who: str
    decision: str
    detail: str
    tone: Tone = "plain"

    def __post_init__(self) -> None:
        _check_tone(self.tone)


@dataclass(frozen=True)
class Outcomes:
    """Decisions side by side."""

    kind: ClassVar[str] = "outcomes"
    title: str
    items: tuple[Outcome, ...]
    intro: str = ""


Section = Headlines | Prose | Facts | Table | Figure | Outcomes


@dataclass(frozen=True)
class Report:
    """A whole page: title, one sentence on what was done, sections in order, and the small print."""

    title: str
    lede: str
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()
    language: str = "en"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", self.language):
            raise ConfigError(f"report language is {self.language!r}; use a tag such as 'en'")


def render(report: Report) -> str:
    """Return the report as one self-contained HTML page.

    The same report gives the same text. Write it as UTF-8.
    """
    figures = [section for section in report.sections if isinstance(section, Figure)]
    scripts = [_plotly_js(), _asset("report.js")] if figures else []
    return _template().render(
        report=report,
        sections=[_Placed(f"s{i}", section) for i, section in enumerate(report.sections, 1)],
        css=Markup(_asset("report.css")),  # noqa: S704 - our own file
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own file and plotly's
        policy=_policy(scripts),
        figure_json=_figure_json,
    )


def _check_tone(tone: str) -> None:
    if tone not in _TONES:
        raise ConfigError(f"tone is {tone!r}; use one of {', '.join(_TONES)}")


@dataclass(frozen=True)
class _Placed:
    """A section and its anchor."""

    anchor: str
    section: Section


def _policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: only these scripts run, nothing is fetched, nothing is sent.

    Inline styles stay allowed because plotly writes its own.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _figure_json(figure: go.Figure) -> Markup:
    """Return a figure's data as JSON that cannot end the element that holds it."""
    parsed = json.loads(plotly.io.to_json(figure, validate=True, engine="json"))
    text = json.dumps({"data": parsed["data"], "layout": parsed["layout"]}, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped for JSON in the line above


@cache
def _plotly_js() -> str:
    text: str = plotly.offline.get_plotlyjs()
    # A page's parser turns CR into LF before it checks a script's hash.
    return text.replace("\r\n", "\n").replace("\r", "\n")


@cache
def _asset(name: str) -> str:
    return resources.files("simulation.pages").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_asset),
    )
    return environment.get_template("report.html.j2")
