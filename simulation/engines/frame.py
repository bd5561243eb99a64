"""Measurements as a pandas DataFrame, one line a figure. No program here needs pandas: who asks for one has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mien.errors import MissingDependencyError

if TYPE_CHECKING:
    from pandas import DataFrame


def to_frame(columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> DataFrame:
    """Return lines as a DataFrame of these columns; raises MissingDependencyError without the package `pandas`.

    A column of rounds has pandas' own whole numbers, of which None is one that is missing.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise MissingDependencyError("a DataFrame needs pandas; pip install pandas") from error
    frame = DataFrame([list(line) for line in lines], columns=list(columns))
    return frame.astype({"round": "Int64"})
