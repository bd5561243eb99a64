"""The methods that a task can name: `METHODS`, one file a paper, device half and server half side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mien._door import door

if TYPE_CHECKING:
    from mien.methods.registry import METHODS, find_method

__all__ = ["METHODS", "find_method"]

_HOME_OF: Final = dict.fromkeys(__all__, "registry")

__getattr__, __dir__ = door(__name__, _HOME_OF)
