"""Incremental verification of the audit log: all of it once, and after that what was added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from coordinator.store.tables import AUDIT
from mien.errors import CorruptDataError
from mien.log.audit import BEGINNING, Anchor, verify

_PIECE = 2000


@dataclass(frozen=True)
class ChainState:
    """Progress of the log's verification, up to which entry it goes, and what is wrong with it (empty: nothing)."""

    verified: Anchor = BEGINNING
    head: Anchor = BEGINNING
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether every entry was verified."""
        return not self.problem and self.verified == self.head

    @property
    def words(self) -> str:
        """Return the state as one sentence."""
        if self.problem:
            return self.problem
        if not self.is_whole:
            return f"being verified: {self.verified.position} of {self.head.position} entries so far"
        return f"{self.head.position} entries, each following from the one before"


def look_on(state: ChainState, ask: Callable[[Callable[[sa.Connection], ChainState]], ChainState]) -> ChainState:
    """Return the state once one more piece was verified; the same again when there is nothing new."""

    def piece(db: sa.Connection) -> ChainState:
        head = AUDIT.read_head(db)
        start = state.verified
        entries = AUDIT.read_with_hashes(db, after=start.position, limit=_PIECE)
        end = Anchor(entries[-1][0].position, entries[-1][1]) if entries else start
        if end.position >= head.position or not entries:
            end = head  # whatever was cut off or added behind it shows here
        return ChainState(verify(entries, end, since=start), head)

    if state.problem:
        return state
    try:
        return ask(piece)
    except CorruptDataError as error:
        return ChainState(state.verified, state.head, error.message)
