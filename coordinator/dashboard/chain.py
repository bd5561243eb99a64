"""Incremental verification of the audit log and of the log of rounds: all of it once, and after that what was added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from coordinator.store import round_log
from coordinator.store.round_log import Verified
from coordinator.store.tables import AUDIT
from mien.errors import CorruptDataError
from mien.format import several
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
            return (
                f"being verified: {self.verified.position} of {several(self.head.position, 'entry', 'entries')} so far"
            )
        return f"{several(self.head.position, 'entry', 'entries')}, each following from the one before"


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


@dataclass(frozen=True)
class RoundLogState:
    """Progress of the log of rounds' verification, whether every entry was verified, and what is wrong with it."""

    verified: Verified = field(default_factory=Verified)
    is_whole: bool = False
    problem: str = ""

    @property
    def words(self) -> str:
        """Return the state as one sentence."""
        if self.problem:
            return self.problem
        if not self.is_whole:
            return f"being verified: {several(self.verified.size, 'entry', 'entries')} so far"
        return (
            f"the tree of {several(self.verified.size, 'entry', 'entries')}, hashed again, is the one that was cosigned"
        )


def look_on_rounds(
    state: RoundLogState, ask: Callable[[Callable[[sa.Connection], Verified]], Verified]
) -> RoundLogState:
    """Return the state once up to a thousand entries more were verified; the same again when there is nothing new."""
    if state.problem:
        return state
    try:
        found = ask(lambda db: round_log.verify_more(db, state.verified))
    except CorruptDataError as error:
        return replace(state, is_whole=False, problem=error.message)
    return RoundLogState(found, is_whole=found == state.verified)
