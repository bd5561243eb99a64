"""The audit log: what operators and the system did, in a chain that shows what was edited, removed, swapped or cut off.

Each entry holds the hash of the one before. Whoever can write to the log can also make all of it anew; what they cannot
do is make it fit an `Anchor`, the hash of one entry, that was written down elsewhere before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mien.errors import ConfigError, CorruptDataError
from mien.log.chain import GENESIS, canonical_json, link_sha256

_ANCHOR: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_RESTORE: Final = "compare with a backup, and find out who can write to the database"


@dataclass(frozen=True)
class Anchor:
    """One place in a log: the number of an entry and its hash. Position 0 is the empty log."""

    position: int = 0
    sha256: str = GENESIS

    def __str__(self) -> str:
        return f"{self.position}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> Anchor:
        """Return the anchor that `audit head` printed; raises ConfigError."""
        found = _ANCHOR.fullmatch(text.strip())
        if found is None:
            raise ConfigError(f"{text[:80]!r} is no anchor; give what audit head printed, NUMBER:HASH")
        return cls(int(found[1]), found[2])


BEGINNING: Final = Anchor()
"""The place of a log without entries."""


@dataclass(frozen=True)
class Entry:
    """Audit entry: actor, action, subject and time; `detail_json` is canonical JSON, an object.

    Never holds biometric data, keys or tokens. `sha256` is kept beside the entry so that a change can be located.
    """

    position: int
    at_ms: int
    actor: str
    action: str
    subject: str
    detail_json: str
    previous_sha256: str

    @cached_property
    def sha256(self) -> str:
        """Hex SHA-256 of the canonical bytes."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return link_sha256("audit-entry", canonical_json(values))

    @property
    def anchor(self) -> Anchor:
        """Anchor of this entry."""
        return Anchor(self.position, self.sha256)


def verify(
    entries: Iterable[tuple[Entry, str]], head: Anchor, anchors: Collection[Anchor] = (), *, since: Anchor = BEGINNING
) -> Anchor:
    """Return the newest entry's place in a log that holds: (entry, hash stored beside it), oldest first.

    `since` is an earlier answer, where only what came behind it is given.

    Raises CorruptDataError that names the first entry that was edited, removed, inserted or swapped; or says that the
    newest ones are missing, by `head` (kept with the log) or an anchor (kept elsewhere). O(1) memory.
    """
    last = since
    _check_anchors(last, anchors)
    for entry, stored_sha256 in entries:
        if entry.position != last.position + 1:
            raise CorruptDataError(
                f"the audit log goes from entry {last.position} to {entry.position}: entries were removed or added; "
                + _RESTORE
            )
        if entry.sha256 != stored_sha256:
            raise CorruptDataError(f"entry {entry.position} of the audit log was edited; {_RESTORE}")
        if entry.previous_sha256 != last.sha256:
            raise CorruptDataError(
                f"entry {entry.position} of the audit log does not follow the one before it: one of the two was "
                f"replaced; {_RESTORE}"
            )
        last = entry.anchor
        _check_anchors(last, anchors)
    if last != head:
        raise CorruptDataError(
            f"the audit log ends at entry {last.position}, but it was written up to {head.position}: the newest "
            f"entries were removed or replaced; {_RESTORE}"
        )
    if (beyond := max((anchor.position for anchor in anchors), default=0)) > last.position:
        raise CorruptDataError(
            f"the audit log ends at entry {last.position}, before the anchor at {beyond}: the newest entries were "
            f"removed, or this is an older copy; {_RESTORE}"
        )
    return last


def _check_anchors(found: Anchor, anchors: Collection[Anchor]) -> None:
    if any(anchor.position == found.position and anchor != found for anchor in anchors):
        raise CorruptDataError(
            f"entry {found.position} of the audit log is not the one that the anchor names: the log was made anew, or "
            f"the anchor belongs to another one; {_RESTORE}"
        )
