"""Findings of a program's doctor, piece by piece: each check says what it saw, or raises what is to be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mien.errors import MienError


@dataclass(frozen=True)
class Finding:
    """One check: what it found, or the error that says what to do."""

    name: str
    detail: str
    error: MienError | None = None

    @property
    def ok(self) -> bool:
        """True if all is well."""
        return self.error is None

    def to_mapping(self) -> dict[str, object]:
        """Return the finding as plain data."""
        code = None if self.error is None else self.error.code
        return {"name": self.name, "ok": self.ok, "error": code, "detail": self.detail}


def look(name: str, check: Callable[[], str], wording: Callable[[str], str] = str) -> Finding:
    """Return the finding of a check; `wording` returns an error's message in the command line's words."""
    try:
        return Finding(name, check())
    except MienError as error:
        return Finding(name, wording(error.message), error)
