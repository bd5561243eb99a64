"""mien-coordinator audit: the history of what operators and the system did, and whether it was changed.

Reads the store itself, whether the coordinator runs or not. What the registrar's commands share is at the end.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import typer

from coordinator.commands.common import Home, Json, say
from coordinator.home.home import CoordinatorHome
from mien.format import moment
from mien.shell import cli as shell

if TYPE_CHECKING:
    import sqlalchemy as sa

    from coordinator.store.audit import AuditLog
    from mien.log.audit import Anchor, Entry

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who did what, and whether that was changed.")

Last = Annotated[int, typer.Option(min=1, help="How many of the newest entries.")]
After = Annotated[int, typer.Option(min=0, help="Only entries behind this number.")]
Subject = Annotated[str, typer.Option(help="Only entries about this: an id as the list shows it.")]
Anchors = Annotated[list[str] | None, typer.Option("--anchor", help="What audit head printed earlier; repeatable.")]

_LONG_HEX: Final = re.compile(r"\b[0-9a-f]{24,}\b")

_T = TypeVar("_T")
Ask: TypeAlias = "Callable[[Callable[[AuditLog, sa.Connection], _T]], _T]"


@app.command("list")
def list_entries(home: Home, last: Last = 50, after: After = 0, subject: Subject = "", as_json: Json = False) -> None:
    """List the newest entries, oldest first.

    Example: mien-coordinator audit list --last 20 --home C
    """
    with _log(home) as ask:
        show_list(ask, last, after, subject, as_json=as_json)


@app.command()
def head(home: Home, as_json: Json = False) -> None:
    """Print the newest entry's number and hash: an anchor to write down elsewhere, for `audit verify --anchor`.

    Example: mien-coordinator audit head --home C
    """
    with _log(home) as ask:
        show_head(ask, as_json=as_json)


@app.command()
def verify(home: Home, anchor: Anchors = None, as_json: Json = False) -> None:
    """Check the whole log: edited, removed and reordered entries are named, and the exit code is 20.

    That the newest entries were cut off, or all was written anew, only an anchor kept elsewhere can show.
    Example: mien-coordinator audit verify --home C --anchor 17:5e88…
    """
    with _log(home) as ask:
        show_verified(ask, anchor or [], as_json=as_json)


@contextlib.contextmanager
def _log(folder: Path) -> Iterator[Any]:
    """Open the question to a coordinator's log."""
    from coordinator.store.store import Store
    from mien.shell.clock import Clock

    home = CoordinatorHome(folder)
    store = Store.open(home.database_url(home.resolve().config), Clock())
    try:
        yield store.audit
    finally:
        store.close()


# For both programs


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
