"""Reports: typed sections in, one self-contained HTML page out."""

from simulation.pages.html import (
    Column,
    Facts,
    Figure,
    Headline,
    Headlines,
    Outcome,
    Outcomes,
    Prose,
    Report,
    Section,
    Table,
    render,
)

__all__ = [
    "Column",
    "Facts",
    "Figure",
    "Headline",
    "Headlines",
    "Outcome",
    "Outcomes",
    "Prose",
    "Report",
    "Section",
    "Table",
    "render",
]
