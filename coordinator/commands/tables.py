"""Tables for people: columns chosen by the terminal's width, ids whole so that they can be copied, text as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_BORDERS: Final = 3
"""Width of a column besides its content: a line and a space on either side."""

_LEAST_FOLDED: Final = 16
"""Narrowest that a column of free text is drawn."""


@dataclass(frozen=True)
class Column:
    """One column. The highest `rank` is given up first where the terminal is narrow; rank 0 is always shown.

    `folds` marks free text, which may go on in the next line; anything else stays in one.
    """

    name: str
    rank: int = 0
    folds: bool = False


def listing(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    """Return rows as a table of the columns that fit `width` characters, or in lines where not even the least do.

    Cells are text as it is: what a note says in brackets is no markup. A line below names the columns left out.
    """
    shown = list(range(len(columns)))
    needed = [_needed(column, [row[n] for row in rows]) for n, column in enumerate(columns)]
    while sum(needed[n] + _BORDERS for n in shown) + 1 > width:
        droppable = [n for n in shown if columns[n].rank > 0]
        if not droppable:
            return Group(*(_lines(columns, row) for row in rows))
        shown.remove(max(droppable, key=lambda n: columns[n].rank))
    table = Table()
    for n in shown:
        table.add_column(columns[n].name, overflow="fold", no_wrap=not columns[n].folds, min_width=needed[n])
    for row in rows:
        table.add_row(*(Text(row[n]) for n in shown))
    left_out = [column.name for n, column in enumerate(columns) if n not in shown]
    return Group(table, Text(f"Not shown here: {', '.join(left_out)}; --json has all.")) if left_out else table


def facts(first: str, second: str, rows: Sequence[tuple[str, str | Text]]) -> Table:
    """Return names and values as a table whose values go on in the next line: nothing is cut."""
    table = Table()
    table.add_column(first)
    table.add_column(second, overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value) if isinstance(value, str) else value)
    return table


def found(name: str, detail: str, *, is_fault: bool) -> tuple[str, Text]:
    """Return a doctor's finding as a row of `facts`, faults in red."""
    return name, Text(detail, style="red" if is_fault else "")


def _needed(column: Column, cells: Sequence[str]) -> int:
    widest = max((len(line) for cell in cells for line in cell.splitlines()), default=0)
    return max(len(column.name), min(widest, _LEAST_FOLDED) if column.folds else widest)


def _lines(columns: Sequence[Column], row: Sequence[str]) -> Text:
    """Return one row as lines: its id, then what else there is to say of it."""
    cells = zip(columns[1:], row[1:], strict=True)
    rest = [f"  {column.name}: {' '.join(cell.splitlines())}" for column, cell in cells if cell not in ("", "–")]
    return Text("\n".join([row[0], *rest]), overflow="fold")
