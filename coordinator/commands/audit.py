"""Showing an audit log: the history of what operators and the system did, and whether it was changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from mien.format import moment
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    import sqlalchemy as sa

    from coordinator.store.audit import AuditLog
    from mien.log.audit import Anchor, Entry

_LONG_HEX: Final = re.compile(r"\b[0-9a-f]{24,}\b")

_T = TypeVar("_T")
Ask: TypeAlias = "Callable[[Callable[[AuditLog, sa.Connection], _T]], _T]"


def show_list(ask: Ask[list[Entry]], last: int, after: int, subject: str, *, as_json: bool) -> None:
    """Print the newest entries."""
    entries = ask(lambda log, db: log.read(db, after=after, last=last, subject=subject or None))

    def human() -> None:
        for entry in entries:
            told = ", ".join(f"{name} {_short(value)}" for name, value in json.loads(entry.detail_json).items())
            say(f"{entry.position:>6}  {moment(entry.at_ms)}  {entry.actor}  {entry.action}  {entry.subject}")
            if told:
                say(f"{'':>8}{told}")
        if not entries:
            say("No entries.")

    shell.emit({"entries": [_plain(entry) for entry in entries]}, as_json=as_json, human=human)


def _short(value: object) -> str:
    """Return a detail with its hashes and ids cut to what tells them apart; `--json` has them whole."""
    return _LONG_HEX.sub(lambda found: found[0][:12], str(value))


def show_head(ask: Ask[Anchor], *, as_json: bool) -> None:
    """Print an anchor."""
    anchor = ask(lambda log, db: log.read_head(db))
    shell.emit(_plain_anchor(anchor), as_json=as_json, human=lambda: say(str(anchor)))


def show_verified(ask: Ask[Anchor], anchors: Sequence[str], *, as_json: bool) -> None:
    """Print that the log holds; raises CorruptDataError where it does not."""
    from mien.log.audit import Anchor

    wanted = [Anchor.parse(text) for text in anchors]
    newest = ask(lambda log, db: log.verify(db, wanted))
    kept = f" and fit {len(wanted)} anchors" if wanted else ""

    def human() -> None:
        say(f"The log holds: {newest.position} entries follow from one another{kept}. The newest: {newest}")

    shell.emit({"verifies": True, "anchors": len(wanted), **_plain_anchor(newest)}, as_json=as_json, human=human)


def _plain_anchor(anchor: Anchor) -> dict[str, Any]:
    return {"anchor": str(anchor), "entries": anchor.position, "sha256": anchor.sha256}


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "position": entry.position,
        "at_ms": entry.at_ms,
        "actor": entry.actor,
        "action": entry.action,
        "subject": entry.subject,
        "detail": json.loads(entry.detail_json),
        "sha256": entry.sha256,
    }
