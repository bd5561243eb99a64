"""The verb `audit` of both servers' programs: what operators and the system did, and whether that was changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from coordinator.commands.both import Program, options
from coordinator.commands.common import fields
from mien.format import moment, several
from mien.log.audit import Anchor, Entry
from mien.shell import cli as shell
from mien.shell.cli import say

_LONG_HEX: Final = re.compile(r"\b[0-9a-f]{24,}\b")


def audit_app(program: Program) -> typer.Typer:
    """Return the verbs that read the history of what was done, whether the server runs or not."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who did what, and whether that was changed.")
    Home, Json, words = options(program)

    @app.command(
        "list",
        help="List the newest entries, oldest first.\n\n"
        + program.example(f"audit list --last 20 --home {words.folder}"),
    )
    def list_entries(
        *,
        home: Path = Home,
        last: Annotated[int, typer.Option(min=1, help="How many of the newest entries.")] = 50,
        after: Annotated[int, typer.Option(min=0, help="Only entries behind this number.")] = 0,
        subject: Annotated[str, typer.Option(help="Only entries about this: an id as the list shows it.")] = "",
        as_json: bool = Json,
    ) -> None:
        with program.home(home).store() as store:
            entries = store.audit(lambda log, db: log.read(db, after=after, last=last, subject=subject or None))

        def human() -> None:
            for entry in entries:
                told = ", ".join(f"{name} {_short(value)}" for name, value in json.loads(entry.detail_json).items())
                say(f"{entry.position:>6}  {moment(entry.at_ms)}  {entry.actor}  {entry.action}  {entry.subject}")
                if told:
                    say(f"{'':>8}{told}")
            if not entries:
                say("No entries.")

        shell.emit({"entries": [_plain(entry) for entry in entries]}, as_json=as_json, human=human)

    @app.command(
        help="Print the newest entry's number and hash: an anchor to write down elsewhere, for `audit verify "
        "--anchor`.\n\n" + program.example(f"audit head --home {words.folder}")
    )
    def head(*, home: Path = Home, as_json: bool = Json) -> None:
        with program.home(home).store() as store:
            anchor = store.audit(lambda log, db: log.read_head(db))
        shell.emit(_plain_anchor(anchor), as_json=as_json, human=lambda: say(str(anchor)))

    @app.command(
        help="Check the whole log: edited, removed and reordered entries are named, and the exit code is 20.\n\n"
        "That the newest entries were cut off, or all was written anew, only an anchor kept elsewhere can show.\n"
        + program.example(f"audit verify --home {words.folder} --anchor 17:5e88…")
    )
    def verify(
        *,
        home: Path = Home,
        anchor: Annotated[
            list[str] | None, typer.Option("--anchor", help="What audit head printed earlier; repeatable.")
        ] = None,
        as_json: bool = Json,
    ) -> None:
        wanted = [Anchor.parse(text) for text in anchor or ()]
        with program.home(home).store() as store:
            newest = store.audit(lambda log, db: log.verify(db, wanted))
        kept = f" and fit {len(wanted)} anchors" if wanted else ""

        def human() -> None:
            say(
                f"The log holds: {several(newest.position, 'entry', 'entries')}, each following from the one "
                f"before{kept}. The newest: {newest}"
            )

        shell.emit({"verifies": True, "anchors": len(wanted), **_plain_anchor(newest)}, as_json=as_json, human=human)

    return app


def _short(value: object) -> str:
    """Return a detail with its hashes and ids cut to what tells them apart; `--json` has them whole."""
    return _LONG_HEX.sub(lambda found: found[0][:12], str(value))


def _plain_anchor(anchor: Anchor) -> dict[str, Any]:
    return {"anchor": str(anchor), "entries": anchor.position, "sha256": anchor.sha256}


def _plain(entry: Entry) -> dict[str, Any]:
    named = fields(entry, "position", "at_ms", "actor", "action", "subject", "sha256")
    return {**named, "detail": json.loads(entry.detail_json)}
