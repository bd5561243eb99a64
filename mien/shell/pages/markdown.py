"""A report as Markdown: the same sections as `render` makes a page of, for repositories and mails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from mien.errors import ConfigError
from mien.shell.pages.sections import MARKS, Alerts, Cell, Cells, Empty, Facts, Prose, Report, Section, Table, Tiles

_SPECIAL: Final = re.compile(r"[\\`*\[\]<>|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)")
_BLANKS: Final = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+")
"""Blanks, line ends and what a terminal obeys; the narrow blanks in numbers are none of these."""
_TURNING: Final = re.compile(r"[\u202a-\u202e]")
"""Marks that turn the reading direction of what follows, up to the end of the line."""
_AT_START: Final = re.compile(r"^(?:(\d+)([.)])|()([#+\-=]))(?=[\s#=\-]|$)")


def markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown; the same report gives the same text. Text is escaped.

    Raises ConfigError for a section that has no form in Markdown, such as a figure.
    """
    blocks = [f"# {plain(report.title)}", plain(report.lede)]
    for section in report.sections:
        blocks += [f"## {plain(section.title)}"] if section.title else []
        blocks += _section(section)
    blocks += [plain(line) for line in report.footer]
    return "\n\n".join(block for block in blocks if block) + "\n"


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, in one line."""
    one_line = _TURNING.sub("", _BLANKS.sub(" ", text)).strip()
    escaped = _SPECIAL.sub(lambda found: "\\" + found[0], one_line)
    return _AT_START.sub(lambda found: f"{found[1] or ''}\\{found[2] or found[4]}", escaped)


def _section(section: Section) -> Iterator[str]:
    match section:
        case Table():
            yield plain(section.caption)
            yield _table([column.label for column in section.columns], section.rows, section)
            yield plain(section.note)
        case Facts():
            yield plain(section.intro)
            yield "\n".join(f"- **{plain(term)}:** {_cell(cell)}" for term, cell in section.items)
            yield plain(section.note)
        case Prose() if section.is_list:
            yield "\n".join(f"- {plain(each)}" for each in section.paragraphs)
        case Prose():
            quote = "> " if section.is_notice else ""
            yield from (quote + plain(each) for each in section.paragraphs)
        case Tiles():
            yield plain(section.intro)
            notes = ((each, f" ({plain(each.note)})" if each.note else "") for each in section.items)
            yield "\n".join(f"- **{plain(each.label)}:** {plain(each.value)}{note}" for each, note in notes)
        case Alerts():
            yield "\n".join(f"- **{MARKS[each.tone]}** {plain(each.text)}" for each in section.items)
            yield "" if section.items else plain(section.all_well)
        case Empty():
            yield plain(section.text)
        case _:
            raise ConfigError(f"a section of kind {section.kind} has no form in Markdown; write the page as HTML")


def _table(labels: Sequence[str], rows: Sequence[Cells], table: Table) -> str:
    lines = [_row(map(plain, labels)), _row("---:" if column.numeric else "---" for column in table.columns)]
    lines += [_row(map(_cell, row)) for row in (*rows, *((table.total,) if table.total else ()))]
    return "\n".join(lines)


def _row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(what: Cell | str) -> str:
    cell = what if isinstance(what, Cell) else Cell(what)
    text = plain(cell.text)
    marked = f"{MARKS[cell.tone]} {text}" if cell.tone else f"`{cell.text}`" if _is_code(cell) else text
    return f"{marked} ({plain(cell.note)})" if cell.note else marked


def _is_code(cell: Cell) -> bool:
    return cell.is_code and not re.search(r"[`|\s]", cell.text)
